// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// A question or an answer of up to mostPacked bytes goes in packets. If a part of it is lost, all
// of it goes again, and it has to arrive within a hop. A larger one has a stream to itself. A
// member with a larger answer sends the identifier alone, and is asked the same again by a stream.
// A larger question is put to each member by a stream (question.go draws it). A member that cannot
// answer, or not yet, closes the stream.
const (
	mostPacked = 64 << 10
	stubLen    = 16 // an answer that is an identifier
	mostStream = 64<<10 + resource.MaxList
	largeTime  = 10 * time.Second // for one question, and for its answer
	largeEach  = 8                // members asked at a time
	// mostLarge limits the questions answered at a time: a question may be as large as a list, and
	// so may its answer.
	mostLarge = 16
)

// readLarge reads a length, at most most, and as many bytes.
func readLarge(r io.Reader, most uint32) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > most {
		return nil, fmt.Errorf("cluster: %d bytes announced", n)
	}
	var b bytes.Buffer // grows as the bytes come: an announced length alone costs no memory
	_, err := io.CopyN(&b, r, int64(n))
	return b.Bytes(), err
}

// askByStream puts a question to one member. ok reports whether the member has an answer. An error
// means that it did not answer, or with more than most bytes.
func (a *asker) askByStream(ctx context.Context, m resource.NodeID, q []byte, most uint32) (answer []byte, ok bool, err error) {
	nc, err := a.streams.dial(ctx, questionByte, m)
	if err != nil {
		return nil, false, err
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	_ = nc.SetDeadline(time.Now().Add(2 * largeTime))
	if _, err = nc.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(q)))); err == nil {
		_, err = nc.Write(q)
	}
	var reply [1]byte
	if err == nil {
		_, err = io.ReadFull(nc, reply[:])
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("cluster: asking %012x by a stream: %w", uint64(m), err)
	case reply[0] == 0:
		return nil, false, nil
	}
	answer, err = readLarge(nc, most)
	return answer, err == nil, err
}

// askEach puts a question to each of some members by a stream, to largeEach of them at a time.
func (a *asker) askEach(ctx context.Context, targets []resource.NodeID, q []byte) (r search.Result, err error) {
	life, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(a.life, end)()
	var mu sync.Mutex // guards r
	atOnce(targets, largeEach, func(_ int, m resource.NodeID) {
		answer, ok, err := a.askByStream(life, m, q, mostStream)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Found:
		case ok:
			r.Found, r.From, r.Answer = true, m, answer
			end() // the other members need not answer
		case err != nil:
			a.log.Debug("cluster: a member has not answered a question by a stream", "err", err)
			r.Failed = append(r.Failed, m)
		default:
			r.Covered++
		}
	})
	switch {
	case r.Found:
		return r, nil
	case a.life.Err() != nil:
		return r, context.Cause(a.life)
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	}
	slices.Sort(r.Failed)
	return r, nil
}
