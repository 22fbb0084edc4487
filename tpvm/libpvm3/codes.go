// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// A code is the result of a call that has failed, as pvm3.h defines it. It is an error, so that the
// methods of library can return it as one.
type code int

const (
	badParam     code = -2
	mismatch     code = -3
	overflow     code = -4
	noData       code = -5
	noHost       code = -6
	noFile       code = -7
	denied       code = -8
	noMem        code = -10
	badMsg       code = -12
	sysErr       code = -14
	noBuf        code = -15
	noSuchBuf    code = -16
	nullGroup    code = -17
	dupGroup     code = -18
	noGroup      code = -19
	notInGroup   code = -20
	noInst       code = -21
	hostFail     code = -22
	noParent     code = -23
	notImpl      code = -24
	outOfRes     code = -27
	dupHost      code = -28
	cantStart    code = -29
	noTask       code = -31
	notFound     code = -32
	exists       code = -33
	parentNotSet code = -35
)

// texts are the texts of pvm_perror. Programs print them, and some compare them.
var texts = map[code]string{
	badParam:     "Bad parameter",
	mismatch:     "Parameter mismatch",
	overflow:     "Value too large",
	noData:       "End of buffer",
	noHost:       "No such host",
	noFile:       "No such file",
	denied:       "Permission denied",
	noMem:        "Malloc failed",
	badMsg:       "Can't decode message",
	sysErr:       "Can't contact local daemon",
	noBuf:        "No current buffer",
	noSuchBuf:    "No such buffer",
	nullGroup:    "Null group name",
	dupGroup:     "Already in group",
	noGroup:      "No such group",
	notInGroup:   "Not in group",
	noInst:       "No such instance",
	hostFail:     "Host failed",
	noParent:     "No parent task",
	notImpl:      "Not implemented",
	-25:          "Pvmd system error",
	-26:          "Version mismatch",
	outOfRes:     "Out of resources",
	dupHost:      "Duplicate host",
	cantStart:    "Can't start pvmd",
	-30:          "Already in progress",
	noTask:       "No such task",
	notFound:     "Not Found",
	exists:       "Already Exists",
	-34:          "Hoster must run on master host",
	parentNotSet: "Spawning parent set PvmNoParent",
	-36:          "Master Host IP Address is Loopback! (See pvm3/Readme)",
}

func (c code) Error() string {
	if s, ok := texts[c]; ok {
		return s
	}
	if c <= 0 && c > -36 {
		return fmt.Sprintf("Error %d", -int(c))
	}
	return "Unknown Error"
}

// codeOf returns the code for an error of the packages tpvm, pack, numbers and rocl.
func codeOf(err error) code {
	var c code
	if errors.As(err, &c) {
		return c
	}
	for _, e := range []struct {
		is error
		c  code
	}{
		{rocl.ErrPartial, hostFail}, // also beside an error that says what was not found
		{pack.ErrNoData, noData},
		{pack.ErrBadParam, badParam},
		{pack.ErrOverflow, overflow},
		{pack.ErrType, mismatch},
		{pack.ErrMismatch, mismatch},
		{pack.ErrDamaged, badMsg},
		{tpvm.ErrBadParam, badParam},
		{tpvm.ErrNoProgram, noFile},
		{tpvm.ErrNoHost, noHost},
		{tpvm.ErrNoTask, noTask},
		{tpvm.ErrNoGroup, noGroup},
		{tpvm.ErrNoInstance, noInst},
		{tpvm.ErrInGroup, dupGroup},
		{tpvm.ErrFrozen, dupGroup},
		{tpvm.ErrNotInGroup, notInGroup},
		{tpvm.ErrBarrierCount, mismatch},
		{tpvm.ErrMemberGone, notInGroup},
		{tpvm.ErrNoEntry, notFound},
		{tpvm.ErrDenied, denied},
		{tpvm.ErrEntryExists, exists},
		{rocl.ErrGone, noTask},
		{rocl.ErrUnreachable, noTask},
		{rocl.ErrLimit, noMem},
		{rocl.ErrTooLarge, noMem},
		{rocl.ErrNotFound, notFound},
		{context.DeadlineExceeded, sysErr},
	} {
		if errors.Is(err, e.is) {
			return e.c
		}
	}
	return sysErr
}
