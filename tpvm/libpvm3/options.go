// SPDX-License-Identifier: Apache-2.0

package main

// The options that have a meaning in this library. The other options are kept for pvm_getopt.
const (
	optRoute     = 1
	optAutoErr   = 3
	optFragSize  = 10
	optShowTids  = 18
	optPollType  = 19
	optPollTime  = 20
	optNoReset   = 25
	optionCount  = 26
	routeMost    = 3
	autoErrMost  = 3
	defaultFrags = 4080
	leastFrags   = 52
	mostFrags    = 1 << 20
)

// defaultOptions are the defaults of PVM.
var defaultOptions = [optionCount]int{optRoute: 2, optAutoErr: 1, optFragSize: defaultFrags, optShowTids: 1}

// getOption returns the value of an option.
func (l *library) getOption(what int) (int, error) {
	if what < 1 || what >= optionCount || what == optPollType || what == optPollTime {
		return 0, badParam
	}
	return l.options[what], nil
}

// setOption sets an option and returns its previous value. rocl chooses the route, the size of
// fragments, and how to wait, so the options for these have no effect.
func (l *library) setOption(what, value int) (int, error) {
	old, err := l.getOption(what)
	if err != nil {
		return 0, err
	}
	if what == optRoute && (value < 1 || value > routeMost) || what == optAutoErr && (value < 0 || value > autoErrMost) ||
		what == optFragSize && (value < leastFrags || value > mostFrags) {
		return 0, badParam
	}
	l.options[what] = value
	return old, nil
}
