// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"reflect"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/codec"
)

// Errors of calls and of Register. The error of a failed call matches one of these, an error of
// rocl, such as rocl.ErrGone, or the error of the handler: see [Error].
var (
	ErrUnknownCall = errors.New("rpc: the provider offers no call of this name")
	ErrStream      = errors.New("rpc: the call gives a stream of results, which Stream receives")
	ErrCollision   = errors.New("rpc: two names have the same identifier")
	ErrExists      = errors.New("rpc: the name is registered already")
	ErrPanic       = errors.New("rpc: the handler panicked")
	ErrBusy        = errors.New("rpc: the provider has no room for another call")
	ErrClosed      = errors.New("rpc: the server drains or is closed")
	ErrProtocol    = errors.New("rpc: not a request or reply of this protocol")
	ErrChecksum    = errors.New("rpc: the checksum does not fit the bytes")
	ErrTooLarge    = rocl.ErrTooLarge // metadata, arguments or a result exceed a limit: of metadata, of a message if they may not be pulled, or of the memory
)

// kinds lists the errors that both sides of a call know, with their names on the wire. If an error
// of a handler matches one of them, so does the error at the caller.
var kinds = []struct {
	name string
	err  error
}{
	{"rpc.unknown", ErrUnknownCall}, {"rpc.stream", ErrStream}, {"rpc.panic", ErrPanic}, {"rpc.busy", ErrBusy}, {"rpc.closed", ErrClosed},
	{"rpc.protocol", ErrProtocol}, {"rpc.checksum", ErrChecksum},
	{"canceled", context.Canceled}, {"deadline", context.DeadlineExceeded},
	{"eof", io.EOF}, {"unexpected-eof", io.ErrUnexpectedEOF}, {"unsupported", errors.ErrUnsupported},
	{"not-exist", fs.ErrNotExist}, {"exist", fs.ErrExist}, {"permission", fs.ErrPermission}, {"invalid", fs.ErrInvalid}, {"fs-closed", fs.ErrClosed},
	{"rocl.not-found", rocl.ErrNotFound}, {"rocl.partial", rocl.ErrPartial}, {"rocl.gone", rocl.ErrGone}, {"rocl.unreachable", rocl.ErrUnreachable},
	{"rocl.exists", rocl.ErrExists}, {"rocl.closed", rocl.ErrClosed}, {"rocl.full", rocl.ErrFull}, {"rocl.limit", rocl.ErrLimit},
	{"rocl.too-large", rocl.ErrTooLarge}, {"rocl.value", rocl.ErrValue}, {"rocl.no-reply", rocl.ErrNoReply},
	{"bulk.rights", bulk.ErrRights}, {"bulk.range", bulk.ErrRange}, {"bulk.revoked", bulk.ErrRevoked}, {"bulk.key", bulk.ErrKey}, {"bulk.narrow", bulk.ErrNarrow},
}

// An Error is returned for a call whose handler failed, or which the server refused. It matches,
// with errors.Is, each error of this list that the handler's error matched:
//
//   - the errors of this package;
//   - context.Canceled, context.DeadlineExceeded;
//   - io.EOF, io.ErrUnexpectedEOF, errors.ErrUnsupported;
//   - fs.ErrNotExist, ErrExist, ErrPermission, ErrInvalid and ErrClosed;
//   - rocl.ErrNotFound, ErrPartial, ErrGone, ErrUnreachable, ErrExists, ErrClosed, ErrFull,
//     ErrLimit, ErrTooLarge, ErrValue and ErrNoReply;
//   - bulk.ErrRights, ErrRange, ErrRevoked, ErrKey and ErrNarrow;
//   - the errors that [WithErrors] names on both sides.
type Error struct {
	Call     string   // the name of the call
	Provider rocl.GID // the server's resource
	Text     string   // text of the handler's error
	Ran      bool     // the handler has run; false: the server has refused the call
	kinds    []error
}

func (e *Error) Error() string {
	return fmt.Sprintf("rpc: call %q of %v: %s", e.Call, e.Provider, e.Text)
}

// Unwrap returns the known errors that the handler's error matched.
func (e *Error) Unwrap() []error { return e.kinds }

// IsEnd reports whether the server has refused the call because it drains or is closed, for
// [rocl.IsEnd]. An error of a handler says nothing about the end of the server, also if it matches
// rocl.ErrGone.
func (e *Error) IsEnd() bool { return !e.Ran && errors.Is(e, ErrClosed) }

// argumentType returns the type of the arguments of a call if package codec encodes them, and
// otherwise nil.
func argumentType[In any](cfg *config) reflect.Type {
	if cfg.in != nil || cfg.isJSON {
		return nil
	}
	return reflect.TypeFor[In]()
}

// withType adds the type that argumentType returned to an error for a value that does not fit its
// format. The server has named its own type.
func withType(err error, in reflect.Type) error {
	e, ok := err.(*Error)
	if ok && in != nil && errors.Is(e, rocl.ErrValue) {
		e.Text += "; the caller's arguments are of type " + codec.TypeName(in)
	}
	return err
}

// An errorNames has the errors with names on the wire, besides kinds.
type errorNames map[string]error

const mostText = 4 << 10 // most bytes of an error's text on the wire

// errorBody appends the body of a reply with an error to p. An error whose methods panic, such as a
// nil pointer in an interface, becomes ErrPanic.
func (v errorNames) errorBody(p []byte, err error) (body []byte) {
	defer func() {
		if e := recover(); e != nil {
			body = v.appendError(p, fmt.Errorf("%w: a method of the error that the handler returned", ErrPanic))
		}
	}()
	return v.appendError(p, err)
}

// appendError appends the body of a reply with an error: a byte with the number of known errors,
// their names, and the text.
func (v errorNames) appendError(p []byte, err error) []byte {
	at := len(p)
	p = append(p, 0)
	add := func(name string, known error) {
		if p[at] < 255 && errors.Is(err, known) {
			p[at]++
			p = appendString(p, name)
		}
	}
	for _, k := range kinds {
		add(k.name, k.err)
	}
	for name, known := range v {
		add(name, known)
	}
	text := err.Error()
	return append(p, text[:min(len(text), mostText)]...)
}

// parseError returns the error in the body of a reply. Unknown names are skipped.
func (v errorNames) parseError(p []byte) (*Error, error) {
	if len(p) == 0 {
		return nil, fmt.Errorf("%w: the error has no text", ErrProtocol)
	}
	e := new(Error)
	n, p := int(p[0]), p[1:]
	for range n {
		name, rest, ok := cutString(p)
		if !ok {
			return nil, fmt.Errorf("%w: the error is truncated", ErrProtocol)
		}
		p = rest
		if known := v.find(name); known != nil {
			e.kinds = append(e.kinds, known)
		}
	}
	e.Text = string(p)
	return e, nil
}

func (v errorNames) find(name string) error {
	for _, k := range kinds {
		if k.name == name {
			return k.err
		}
	}
	return v[name]
}
