// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A stream to a member begins with its purpose: the member's directory, or a question. Then it
// names the calling and the called member, each in its present life (question.go draws it). Where
// gossip is sealed, only members know the epochs. A program that has the callee's address and is
// not the callee, or is the callee in another life, closes the stream.
const (
	directoryByte = 'W'
	questionByte  = 'Q'
	streamHead    = 32
	streamTime    = 2 * time.Second // for the head to arrive
)

// head returns the head of a stream between two members, where epoch is the caller's and to is the
// callee's.
func head(what byte, from resource.NodeID, epoch, to uint64) []byte {
	b := []byte{what, 0, 0, 0, 0, 0, 0, 0}
	for _, v := range []uint64{uint64(from), epoch, to} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// streams opens the streams to other members, and reads the heads of theirs.
type streams struct {
	*core
	members *memberTable
}

// dial opens a stream to a member for the purpose what.
func (s *streams) dial(ctx context.Context, what byte, node resource.NodeID) (net.Conn, error) {
	nc, err := s.mux.Dial(ctx, node)
	if err != nil {
		return nil, err
	}
	_ = nc.SetWriteDeadline(time.Now().Add(streamTime))
	if _, err = nc.Write(head(what, s.cfg.Node, s.mux.Epoch(), s.members.epoch(node))); err != nil {
		nc.Close()
		return nil, fmt.Errorf("cluster: calling %012x: %w", uint64(node), err)
	}
	_ = nc.SetWriteDeadline(time.Time{})
	return nc, nil
}

// called reads the head of a stream. ok reports whether the head is that of a living member to this
// one.
func (s *streams) called(nc net.Conn) (what byte, from resource.NodeID, ok bool) {
	_ = nc.SetReadDeadline(time.Now().Add(streamTime))
	var b [streamHead]byte
	if _, err := io.ReadFull(nc, b[:]); err != nil {
		return 0, 0, false
	}
	_ = nc.SetReadDeadline(time.Time{})
	what, from = b[0], resource.NodeID(binary.LittleEndian.Uint64(b[8:]))
	epoch := s.members.epoch(from)
	return what, from, epoch != 0 && subtle.ConstantTimeCompare(b[:], head(what, from, epoch, s.mux.Epoch())) == 1
}
