// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// The protocol of work queues. A worker is a resource with the attribute work=1, the version. The
// queue finds it by a watch, and begins a session with a call. The tag of each message has its kind
// in the lowest eight bits, and above them the number of the session, which the queue counts. All
// numbers are little-endian.
//
//	kind          from    payload
//	1 hello       queue   call: a sample of a task, and the names of the types as a text. A sample is a
//	                      byte with the form (0 a codec of the program, 1 bytes, 2 package codec), four
//	                      bytes of length, and for form 2 the zero value. The reply is the byte 0, four
//	                      bytes with the number of handlers, and a sample of a result; or the byte 1
//	                      and the names of the worker's types; or the byte 2 if the worker leaves
//	2 tasks       queue   for each task eight bytes of identifier, four of length, the value
//	3 recall      queue   four bytes: how many tasks the worker shall give back
//	4 left        queue   no further task of the session comes
//	5 ping        queue   the worker answers with pong, or with bye
//	8 results     worker  for each task eight bytes of identifier, a status byte, four of length, the value
//	                      or a text
//	9 leaving     worker  the worker takes no further task: the queue sends left
//	10 pong       worker
//	11 bye        worker  the worker does not know the session
const (
	kindHello   = 1
	kindTasks   = 2
	kindRecall  = 3
	kindLeft    = 4
	kindPing    = 5
	kindResults = 8
	kindLeaving = 9
	kindPong    = 10
	kindBye     = 11
	kindGone    = 16 // of monitors, not on the wire

	version     = "1"
	attrVersion = "work"

	taskHead   = 12
	resultHead = 13
	mostSlots  = 1 << 20
	mostBatch  = 32 << 10 // bytes of a message, unless it has one task or result
	mostText   = 4 << 10  // bytes of an error's text
)

// The status of a result.
const (
	statusOK       = iota
	statusError    // a text, as with those below
	statusPanic    // matches ErrPanic
	statusValue    // matches rocl.ErrValue
	statusTooLarge // matches rocl.ErrTooLarge
	statusCanceled // matches context.Canceled
	statusDeadline // matches context.DeadlineExceeded
	statusAgain
	statusReturned // the task was not begun
	statusRecalled // the end of the answer to a recall; no task
	statusEnd
)

// The status of the reply to a hello.
const (
	helloOK = iota
	helloTypes
	helloLeaving
)

// known has the errors that a status stands for.
var known = [statusEnd]error{statusPanic: ErrPanic, statusValue: rocl.ErrValue, statusTooLarge: rocl.ErrTooLarge,
	statusCanceled: context.Canceled, statusDeadline: context.DeadlineExceeded, statusAgain: Again}

// statusOf returns the status of a handler's error.
func statusOf(err error) byte {
	if errors.Is(err, Again) {
		return statusAgain
	}
	for s, e := range known {
		if e != nil && errors.Is(err, e) {
			return byte(s)
		}
	}
	return statusError
}

// describe returns the status and the text of a handler's error, whose methods may panic.
func describe(err error) (status byte, text string) {
	defer func() {
		if v := recover(); v != nil {
			status, text = statusPanic, fmt.Sprintf("%v: in a method of the error: %v", ErrPanic, v)
		}
	}()
	text = err.Error()
	return statusOf(err), text[:min(len(text), mostText)]
}

// textOf returns the text of an error of a codec.
func textOf(err error) string {
	_, text := describe(err)
	return text
}

func tagOf(kind byte, session uint32) uint64 { return uint64(kind) | uint64(session)<<8 }

func splitTag(tag uint64) (kind byte, session uint32) { return byte(tag), uint32(tag >> 8) }

// A format encodes values of one type.
type format[T any] struct{ own rocl.Codec[T] }

// append appends v to p. A panic of the program's codec is an error.
func (f format[T]) append(p []byte, v *T) (q []byte, err error) {
	if f.own == nil {
		return codec.Append(p, v)
	}
	defer recovered(&err)
	if q, err = f.own.Append(p, *v); err == nil && len(q) < len(p) {
		err = fmt.Errorf("%w: the codec has returned %d bytes for a slice of %d", codec.ErrValue, len(q), len(p))
	}
	return q, err
}

func (f format[T]) decode(p []byte, v *T) (err error) {
	if f.own == nil {
		return codec.Decode(p, v)
	}
	defer recovered(&err)
	*v, err = f.own.Decode(p)
	return err
}

// recovered makes an error of a panic of the program's codec.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("%w: the codec panicked: %v", codec.ErrValue, v)
	}
}

// appendTask appends a task to a message. If the task cannot be encoded, p stays as it is.
func appendTask[T any](f format[T], p []byte, id uint64, v *T) ([]byte, error) {
	q, err := f.append(append(binary.LittleEndian.AppendUint64(p, id), 0, 0, 0, 0), v)
	if err == nil {
		err = checkLength(len(q) - len(p))
	}
	if err != nil {
		return p, err
	}
	binary.LittleEndian.PutUint32(q[len(p)+8:], uint32(len(q)-len(p)-taskHead))
	return q, nil
}

// checkLength returns an error for an entry that is too long for a message.
func checkLength(n int) error {
	if n > rocl.MaxMessage {
		return fmt.Errorf("%w: %d bytes, a message has at most %d", rocl.ErrTooLarge, n, rocl.MaxMessage)
	}
	return nil
}

// cutTask returns the first task of a message and what lies behind it.
func cutTask(p []byte) (id uint64, value, rest []byte, ok bool) {
	if len(p) < taskHead {
		return 0, nil, nil, false
	}
	id = binary.LittleEndian.Uint64(p)
	n := binary.LittleEndian.Uint32(p[8:])
	p = p[taskHead:]
	if uint64(n) > uint64(len(p)) {
		return 0, nil, nil, false
	}
	return id, p[:n], p[n:], true
}

// appendResult appends what has become of a task to a message.
func appendResult(p []byte, id uint64, status byte, value []byte) []byte {
	p = append(binary.LittleEndian.AppendUint64(p, id), status)
	return append(binary.LittleEndian.AppendUint32(p, uint32(len(value))), value...)
}

// cutResult returns the first result of a message and what lies behind it.
func cutResult(p []byte) (id uint64, status byte, value, rest []byte, ok bool) {
	if len(p) < resultHead || p[8] >= statusEnd {
		return 0, 0, nil, nil, false
	}
	id, status = binary.LittleEndian.Uint64(p), p[8]
	n := binary.LittleEndian.Uint32(p[9:])
	p = p[resultHead:]
	if uint64(n) > uint64(len(p)) {
		return 0, 0, nil, nil, false
	}
	return id, status, p[:n], p[n:], true
}

// The forms of values.
const (
	formOwn   = iota // by a codec of the program
	formBytes        // bytes and strings
	formCodec        // by package codec
)

// form returns the form of the values of a type.
func (f format[T]) form() byte {
	t := reflect.TypeFor[T]()
	switch {
	case f.own != nil:
		return formOwn
	case t.Kind() == reflect.String || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return formBytes
	}
	return formCodec
}

// sample appends the form of values and, if that is formCodec, the zero value, behind four bytes of
// length. The other side checks that it is a value of its own type.
func sample[T any](p []byte, f format[T]) []byte {
	var zero T
	q := append(p, f.form(), 0, 0, 0, 0)
	if f.form() == formCodec {
		if r, err := f.append(q, &zero); err == nil {
			q = r
		}
	}
	binary.LittleEndian.PutUint32(q[len(p)+1:], uint32(len(q)-len(p)-5))
	return q
}

// checkSample reports whether a payload begins with a sample that fits the type, and returns what
// lies behind it.
func checkSample[T any](p []byte, f format[T]) (rest []byte, ok bool) {
	if len(p) < 5 || uint64(binary.LittleEndian.Uint32(p[1:])) > uint64(len(p)-5) {
		return nil, false
	}
	n := binary.LittleEndian.Uint32(p[1:])
	var v T
	ok = p[0] == f.form() && (n == 0 || f.decode(p[5:5+n], &v) == nil)
	return p[5+n:], ok
}

// appendTypes appends the names of the types of tasks and results to p.
func appendTypes[In, Out any](p []byte) []byte {
	return fmt.Appendf(p, "tasks %s and results %s", codec.TypeName(reflect.TypeFor[In]()), codec.TypeName(reflect.TypeFor[Out]()))
}

// attributes returns a with the attribute of the version.
func attributes(a rocl.Attributes) (*rocl.List, error) {
	var l rocl.List
	if a != nil {
		if err := a.AppendAttrs(&l); err != nil {
			return nil, err
		}
	}
	return &l, l.Add(attrVersion, []byte(version))
}
