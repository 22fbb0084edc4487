// SPDX-License-Identifier: Apache-2.0

// Package flowfile has the files of `rocl flow`: the configuration, which says how the groups of a
// graph run, and the drawing, which says of what a graph consists. It imports nothing of the
// module.
//
//	flowfile.go  the configuration
//	fields.go    reading JSON so that each error names its key
//	drawing.go   the drawing of a graph
package flowfile

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrConfig is what each error about a configuration wraps.
var ErrConfig = errors.New("the configuration is invalid")

// An Error says what is wrong with a configuration.
type Error struct {
	File string
	Key  string // such as groups[1].batchSize; empty if the whole file is wrong
	Err  error  // the reason
}

// Error names the file, the key and the reason.
func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("dataflow: %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("dataflow: %s: %s: %v", e.File, e.Key, e.Err)
}

// Unwrap returns the reason and ErrConfig.
func (e *Error) Unwrap() []error { return []error{e.Err, ErrConfig} }

// A File is a configuration.
type File struct {
	Name     string // of the file
	Text     []byte // as it was read
	Protocol string // one of protocols, or empty
	Groups   []Group
}

// A Group is what a configuration says of one group. A zero field is not set.
type Group struct {
	Name       string
	Host       string // where the launcher starts it; empty: this host
	BatchItems int
	BatchBytes int
	BatchDelay time.Duration
	Window     int
	Cores      []int
	PreCmd     string // shell text
	Policy     string // one of policies
	Demand     int    // of the policy OnDemand
	Env        []string
}

// protocols are the names that FastFlow accepts.
var protocols = []string{"TCP", "MPI", "UCX", "MQTT", "MPIP2P", "SHM"}

// policies are those that a configuration may give. The others belong to the meaning of a graph.
var policies = []string{"Balanced", "RoundRobin", "PreferLocal", "OnDemand"}

// Read reads the configuration in a file.
func Read(name string) (*File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, &Error{File: name, Err: err}
	}
	return Parse(name, text)
}

// Parse reads a configuration. Errors name it as the file.
func Parse(name string, text []byte) (*File, error) {
	f := &File{Name: name, Text: text}
	if err := f.parse(); err != nil {
		var e *Error
		if !errors.As(err, &e) {
			e = &Error{Err: err}
		}
		e.File = name
		return nil, e
	}
	return f, nil
}

// WithProtocol returns the configuration with another protocol.
func (f *File) WithProtocol(protocol string) (*File, error) {
	if !slices.Contains(protocols, protocol) {
		return nil, fmt.Errorf("%q is unknown; it can be %s", protocol, strings.Join(protocols, ", "))
	}
	fields, err := root(f.Text)
	if err != nil {
		return nil, err
	}
	text := fmt.Appendf(nil, "{%q: %q", "protocol", protocol)
	for _, v := range fields {
		if v.name != "protocol" {
			text = fmt.Appendf(text, ", %q: %s", v.name, v.raw)
		}
	}
	return Parse(f.Name, append(text, '}'))
}

// Errorf returns an error about a key.
func (f *File) Errorf(key, format string, args ...any) error {
	return &Error{File: f.Name, Key: key, Err: fmt.Errorf(format, args...)}
}

// Group returns what is said of a group.
func (f *File) Group(name string) (*Group, error) {
	if i := f.index(name); i >= 0 {
		return &f.Groups[i], nil
	}
	return nil, f.Errorf("groups", "no group has the name %q", name)
}

func (f *File) index(name string) int {
	return slices.IndexFunc(f.Groups, func(g Group) bool { return g.Name == name })
}

// Match fails unless the groups are those of a program.
func (f *File) Match(program []string) error {
	for i, g := range f.Groups {
		if !slices.Contains(program, g.Name) {
			return f.Errorf(fmt.Sprintf("groups[%d].name", i), "the program has no group %q; its groups are %q", g.Name, program)
		}
	}
	for _, name := range program {
		if f.index(name) < 0 {
			return f.Errorf("groups", "the group %q of the program is missing", name)
		}
	}
	return nil
}

func (f *File) parse() error {
	var groups []value
	hasGroups := false
	all, err := root(f.Text)
	if err != nil {
		return err
	}
	for _, v := range all {
		switch v.name {
		case "protocol":
			f.Protocol, err = v.oneOf(protocols)
		case "groups":
			hasGroups = true
			groups, err = v.list()
		default:
			err = v.unknown("protocol", "groups")
		}
		if err != nil {
			return err
		}
	}
	if !hasGroups {
		return &Error{Key: "groups", Err: errors.New("the key is missing")}
	}
	if len(groups) == 0 {
		return &Error{Key: "groups", Err: errors.New("the list is empty")}
	}
	for _, v := range groups {
		g, err := v.group()
		if err != nil {
			return err
		}
		if f.index(g.Name) >= 0 {
			return &Error{Key: v.key + ".name", Err: fmt.Errorf("two groups have the name %q", g.Name)}
		}
		f.Groups = append(f.Groups, g)
	}
	return nil
}

// group reads what is said of one group.
func (v value) group() (g Group, err error) {
	all, err := v.object()
	for _, v := range all {
		if err != nil {
			return g, err
		}
		switch v.name {
		case "name":
			g.Name, err = v.text()
		case "endpoint":
			g.Host, err = v.endpoint()
		case "batchSize":
			g.BatchItems, err = v.count()
		case "batchByteSize":
			g.BatchBytes, err = v.bytes()
		case "batchDelay":
			g.BatchDelay, err = v.duration()
		case "messageOTF":
			g.Window, err = v.count()
		case "threadMapping":
			g.Cores, err = v.cores()
		case "preCmd":
			g.PreCmd, err = v.text()
		case "policy":
			g.Policy, g.Demand, err = v.policy()
		case "env":
			g.Env, err = v.env()
		case "internalMessageOTF", "includedNodes": // FastFlow's: of its queues within a group, and of its dry run
		default:
			err = v.unknown("name", "endpoint", "batchSize", "batchByteSize", "batchDelay", "messageOTF", "threadMapping", "preCmd", "policy", "env")
		}
	}
	if err == nil && g.Name == "" {
		err = &Error{Key: v.key + ".name", Err: errors.New("the key is missing")}
	}
	return g, err
}

// endpoint returns the host of an endpoint. Its port must be valid, and is not used: groups find
// each other by attributes.
func (v value) endpoint() (string, error) {
	s, err := v.text()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", v.errorf("%q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", v.errorf("the port of %q is not a number from 1 to 65535", s)
	}
	if strings.HasPrefix(host, "-") || strings.ContainsAny(host, " \t\r\n\x00") {
		return "", v.errorf("%q is not the name of a host", host)
	}
	return host, nil
}

// bytes reads a number of bytes: digits and perhaps k, m or g.
func (v value) bytes() (int, error) {
	s, err := v.text()
	if err != nil {
		return 0, v.errorf(`%s is not a text such as "65536" or "256k"`, v.short())
	}
	digits, shift := s, 0
	if s != "" {
		if i := strings.IndexByte("kmg", s[len(s)-1]|0x20); i >= 0 {
			digits, shift = s[:len(s)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	switch {
	case err != nil:
		return 0, v.errorf("%q is not digits with an optional k, m or g", s)
	case n == 0:
		return 0, v.errorf("%q is not more than zero", s)
	case n > 2<<30>>shift:
		return 0, v.errorf("%q is more than 2g", s)
	}
	return int(n << shift), nil
}

func (v value) duration() (time.Duration, error) {
	s, err := v.text()
	if err != nil {
		return 0, err
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, v.errorf(`%q is not a duration above zero, such as "1ms"`, s)
	}
	return d, nil
}

// cores reads the numbers of processors, with commas between them.
func (v value) cores() (cores []int, err error) {
	s, err := v.text()
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 10)
		if err != nil {
			return nil, v.errorf("%q is not a list of processors from 0 to 1023, such as \"0,1\"", s)
		}
		cores = append(cores, int(n))
	}
	return cores, nil
}

// policy reads the name of a policy, with its number in brackets if it has one.
func (v value) policy() (name string, demand int, err error) {
	s, err := v.text()
	if err != nil {
		return "", 0, err
	}
	name, number, hasNumber := strings.Cut(strings.TrimSuffix(s, ")"), "(")
	if hasNumber {
		demand, err = strconv.Atoi(number)
	}
	isDemand := name == "OnDemand"
	if err != nil || !slices.Contains(policies, name) || hasNumber != isDemand || strings.HasSuffix(s, ")") != isDemand || isDemand && demand < 1 {
		return "", 0, v.errorf("%q is not Balanced, RoundRobin, PreferLocal or OnDemand(n) with n above zero", s)
	}
	return name, demand, nil
}

// env reads variables of the environment, as name=value.
func (v value) env() (all []string, err error) {
	vars, err := v.object()
	if err != nil {
		return nil, err
	}
	for _, e := range vars {
		text, err := e.anyText()
		if err != nil {
			return nil, err
		}
		if e.name == "" || strings.ContainsAny(e.name, "=\x00") || strings.Contains(text, "\x00") {
			return nil, e.errorf("%q is no variable of the environment", e.name)
		}
		all = append(all, e.name+"="+text)
	}
	return all, nil
}
