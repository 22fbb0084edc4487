// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

// A question or an answer of up to mostPacked bytes goes in packets. If a part of it is lost, all
// of it goes again, and it has to arrive within a hop. A larger one has a stream to itself. A
// member with a larger answer sends the identifier alone, and is asked the same again by a stream.
// A larger question is put to each member by a stream.
//
//	asking member    head, as of all streams, 'Q' | len u32 | question
//	answering member 0: no
//	                 1 | len u32 | answer
//
// A member that cannot answer, or not yet, closes the stream.
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

// sizeOf returns the largest size of an answer, in bytes, without making the answer: other
// questions wait meanwhile.
func sizeOf(r *database.Record, pattern *resource.List) int {
	const head = 40
	if pattern.Complete() {
		return head + len(r.Attrs.Wire())
	}
	return head + pattern.FilledLen(&r.Attrs)
}

// serveQuestion answers the question that comes by a stream.
func (c *Cluster) serveQuestion(nc net.Conn) error {
	defer nc.Close()
	select {
	case c.large <- struct{}{}:
		defer func() { <-c.large }()
	case <-c.life.Done():
		return nil
	}
	_ = nc.SetDeadline(time.Now().Add(largeTime))
	q, err := readLarge(nc)
	if err != nil {
		return err
	}
	if !c.answers(q) {
		return nil
	}
	b := []byte{0}
	if a, ok := c.answer([]byte{1, 0, 0, 0, 0}, q, math.MaxInt); ok {
		binary.LittleEndian.PutUint32(a[1:], uint32(len(a)-5))
		b = a
	}
	_ = nc.SetDeadline(time.Now().Add(largeTime))
	_, err = nc.Write(b)
	return err
}

// readLarge reads a length and as many bytes.
func readLarge(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > mostStream {
		return nil, fmt.Errorf("cluster: %d bytes announced", n)
	}
	var b bytes.Buffer // grows as the bytes come: an announced length alone costs no memory
	_, err := io.CopyN(&b, r, int64(n))
	return b.Bytes(), err
}

// askByStream puts a question to one member. ok reports whether the member has an answer. An error
// means that it did not answer.
func (c *Cluster) askByStream(ctx context.Context, m resource.NodeID, q []byte) (answer []byte, ok bool, err error) {
	nc, err := c.dial(ctx, questionByte, m)
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
	var said [1]byte
	if err == nil {
		_, err = io.ReadFull(nc, said[:])
	}
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("cluster: asking %012x by a stream: %w", uint64(m), err)
	case said[0] == 0:
		return nil, false, nil
	}
	answer, err = readLarge(nc)
	return answer, err == nil, err
}

// askEach puts a question to each of some members by a stream, to largeEach of them at a time.
func (c *Cluster) askEach(ctx context.Context, who []resource.NodeID, q []byte) (r search.Result, err error) {
	life, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(c.life, end)()
	var mu sync.Mutex // guards r
	var busy sync.WaitGroup
	room := make(chan struct{}, largeEach)
	for _, m := range who {
		room <- struct{}{}
		busy.Go(func() {
			defer func() { <-room }()
			a, ok, err := c.askByStream(life, m, q)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case r.Found:
			case ok:
				r.Found, r.From, r.Answer = true, m, a
				end() // the other members need not answer
			case err != nil:
				c.log.Debug("cluster: a question", "err", err)
				r.Failed = append(r.Failed, m)
			default:
				r.Covered++
			}
		})
	}
	busy.Wait()
	switch {
	case r.Found:
		return r, nil
	case c.life.Err() != nil:
		return r, directory.ErrClosed
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	}
	slices.Sort(r.Failed)
	return r, nil
}
