// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/connlimit"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/spf13/cobra"
)

const maxConns = 64 // of the page

// serve shows the views that read returns on a page at an address, from the moment at on, until the
// command is interrupted.
func serve(cmd *cobra.Command, addr, at string, read func() (*observe.View, error)) error {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil || !tcp.IP.IsLoopback() {
		return usage.Errorf("--http %s is not an address that only this machine reaches, such as 127.0.0.1:9465", usage.Quote(addr))
	}
	read, err = from(at, read)
	if err != nil {
		return err
	}
	ln, err := net.ListenTCP("tcp", tcp)
	if err != nil {
		return err
	}
	gate := web.NewGate(ln.Addr().String())
	page := web.NewReplay(gate, read)
	mux := http.NewServeMux()
	page.Handle(mux)
	s := web.NewServer(web.Guard(mux, true))
	s.ErrorLog = log.New(io.Discard, "", 0)
	stop := context.AfterFunc(cmd.Context(), func() { s.Close() })
	defer page.Close()
	defer stop()
	url := gate.URL("http://" + ln.Addr().String())
	if cli.Flags(cmd).JSON {
		err = cli.Print(cmd.OutOrStdout(), map[string]string{"url": url})
	} else {
		_, err = fmt.Fprintln(cmd.OutOrStdout(), url)
	}
	if err != nil {
		return errors.Join(err, ln.Close())
	}
	if err = s.Serve(connlimit.New(maxConns, maxConns).Listener(ln)); errors.Is(err, http.ErrServerClosed) {
		return context.Cause(cmd.Context())
	}
	return err
}

var errEmpty = errors.New("the recording is empty")

// from returns a function that returns the views of read in turn, from the first one at the moment
// at, or the last one. at is as momentOf reads it; "" is the first view. from fails if there is no
// view.
func from(at string, read func() (*observe.View, error)) (func() (*observe.View, error), error) {
	first, err := read()
	if errors.Is(err, io.EOF) {
		return nil, errEmpty
	}
	if err != nil {
		return nil, err
	}
	if at != "" {
		begin, err := momentOf(at, first.Taken)
		if err != nil {
			return nil, err
		}
		for first.Taken.Before(begin) {
			v, err := read()
			if err != nil {
				break // the end, which read tells again
			}
			first = v
		}
	}
	return func() (*observe.View, error) {
		if v := first; v != nil {
			first = nil
			return v, nil
		}
		return read()
	}, nil
}
