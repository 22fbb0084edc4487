// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// A buffer is a message buffer of PVM: a message that is being packed, or one that was received.
type buffer struct {
	id   int
	out  *pack.Buffer  // the message that is being packed, or nil
	in   *pack.Reader  // the message that is being unpacked, or nil
	msg  *tpvm.Message // the message whose memory in refers to, or nil
	info minfo
	from tpvm.TID // the sender, if info.src has not been looked up
}

// minfo is PVM's struct pvmminfo.
type minfo struct{ len, ctx, tag, wid, enc, crc, src, dst int }

// encoding returns the encoding of the values.
func (b *buffer) encoding() pack.Encoding {
	if b.out != nil {
		return b.out.Encoding()
	}
	return b.in.Encoding()
}

// size returns how many bytes the values take.
func (b *buffer) size() int {
	if b.out != nil {
		return b.out.Len()
	}
	return len(b.in.Payload())
}

// reader returns the reader of the message. The reader of a message that is being packed reads what
// has been packed so far.
func (b *buffer) reader() (*pack.Reader, error) {
	if b.in == nil {
		p, err := b.out.AppendTo(nil)
		if err != nil {
			return nil, err
		}
		if b.in, err = pack.NewReader(b.out.Encoding(), b.out.Typed(), p); err != nil {
			return nil, err
		}
	}
	return b.in, nil
}

// packed returns the message to send. A message that was received is sent as it came.
func (b *buffer) packed() (*pack.Buffer, error) {
	if b.out == nil {
		out := pack.NewBuffer(b.in.Encoding())
		if err := out.PackMessageBody(b.in); err != nil {
			return nil, err
		}
		b.out = out
	}
	return b.out, nil
}

// release gives the memory of the message back.
func (b *buffer) release() {
	if b.msg != nil {
		b.msg.Release()
		b.msg = nil
	}
	if b.out != nil {
		b.out.Reset(pack.Default)
	}
}

// A bufferTable holds the buffers by their numbers, and knows the two active ones.
type bufferTable struct {
	all        []*buffer // buffer i+1, or nil
	send, recv *buffer   // active
	spare      *pack.Buffer
}

// add gives b the lowest free number.
func (t *bufferTable) add(b *buffer) *buffer {
	for i, o := range t.all {
		if o == nil {
			b.id, t.all[i] = i+1, b
			return b
		}
	}
	t.all = append(t.all, b)
	b.id = len(t.all)
	return b
}

// get returns a buffer by its number, or nil.
func (t *bufferTable) get(id int) *buffer {
	if id < 1 || id > len(t.all) {
		return nil
	}
	return t.all[id-1]
}

// find returns a buffer by its number. Buffer 0 is nil, without an error. A number that no buffer
// has is an error.
func (t *bufferTable) find(id int) (*buffer, error) {
	switch b := t.get(id); {
	case id < 0:
		return nil, badParam
	case b == nil && id > 0:
		return nil, noSuchBuf
	default:
		return b, nil
	}
}

// make adds an empty buffer to pack a message into.
func (t *bufferTable) make(enc int) (*buffer, error) {
	if enc < int(pack.Default) || enc > int(pack.InPlace) {
		return nil, badParam
	}
	out := t.spare
	if t.spare = nil; out == nil {
		out = pack.NewBuffer(pack.Encoding(enc))
	} else {
		out.Reset(pack.Encoding(enc))
	}
	return t.add(&buffer{out: out, info: minfo{enc: enc}}), nil
}

// initSend replaces the active send buffer with an empty one.
func (t *bufferTable) initSend(enc int) (int, error) {
	if enc < int(pack.Default) || enc > int(pack.InPlace) {
		return 0, badParam
	}
	if b := t.send; b != nil {
		t.drop(b)
	}
	b, err := t.make(enc)
	if err != nil {
		return 0, err
	}
	t.send = b
	return b.id, nil
}

// drop frees a buffer.
func (t *bufferTable) drop(b *buffer) {
	b.release()
	if b.out != nil && t.spare == nil {
		t.spare, b.out = b.out, nil
	}
	t.all[b.id-1] = nil
	if t.send == b {
		t.send = nil
	}
	if t.recv == b {
		t.recv = nil
	}
}

// free frees a buffer by its number. Freeing buffer 0 does nothing.
func (t *bufferTable) free(id int) error {
	b, err := t.find(id)
	if b != nil {
		t.drop(b)
	}
	return err
}

// setSend makes a buffer the active send buffer, and no longer the active receive buffer. It
// returns the number of the previous one.
func (t *bufferTable) setSend(id int) (int, error) {
	b, err := t.find(id)
	if err != nil {
		return 0, err
	}
	if b != nil {
		if _, err := b.packed(); err != nil {
			return 0, err
		}
		if t.recv == b {
			t.recv = nil
		}
	}
	old := t.send.number()
	t.send = b
	return old, nil
}

// setRecv makes a buffer the active receive buffer, and no longer the active send buffer. It
// returns the number of the previous one. A message that has been packed is then unpacked from its
// beginning.
func (t *bufferTable) setRecv(id int) (int, error) {
	b, err := t.find(id)
	if err != nil {
		return 0, err
	}
	if b != nil && b.out != nil && b.msg == nil {
		b.in = nil
		if _, err := b.reader(); err != nil {
			return 0, err
		}
	}
	if b != nil && t.send == b {
		t.send = nil
	}
	old := t.recv.number()
	t.recv = b
	return old, nil
}

// restore makes buffers active again that were active before, unless they were freed since.
func (t *bufferTable) restore(send, recv *buffer) {
	t.send, t.recv = nil, nil
	if send != nil && t.get(send.id) == send {
		t.send = send
	}
	if recv != nil && t.get(recv.id) == recv {
		t.recv = recv
	}
}

// number returns the number of a buffer, or 0 if b is nil.
func (b *buffer) number() int {
	if b == nil {
		return 0
	}
	return b.id
}

// received adds a message that was received and makes it the active receive buffer. The previous
// one is freed, as PVM does.
func (t *bufferTable) received(b *buffer) int {
	if old := t.recv; old != nil {
		t.drop(old)
	}
	t.recv = t.add(b)
	return b.id
}

// toPack returns the active send buffer.
func (t *bufferTable) toPack() (*pack.Buffer, error) {
	if t.send == nil {
		return nil, noBuf
	}
	return t.send.out, nil
}

// toUnpack returns the reader of the active receive buffer.
func (t *bufferTable) toUnpack() (*pack.Reader, error) {
	if t.recv == nil {
		return nil, noBuf
	}
	return t.recv.reader()
}

// existing returns a buffer by its number, where 0 is an error.
func (t *bufferTable) existing(id int) (*buffer, error) {
	if id == 0 {
		return nil, badParam
	}
	return t.find(id)
}

// packMessage packs the message of a buffer, or only its values, into the active send buffer.
func (l *library) packMessage(id int, bodyOnly bool) error {
	to, err := l.buffers.toPack()
	if err != nil {
		return err
	}
	b, err := l.buffers.existing(id)
	if err != nil {
		return err
	}
	r, err := b.reader()
	if err != nil {
		return err
	}
	if bodyOnly {
		return to.PackMessageBody(r)
	}
	r.SetEnvelope(pack.Envelope{Context: uint32(b.info.ctx), Tag: int32(b.info.tag), From: b.from})
	return to.PackMessage(r)
}

// unpackMessage unpacks a message that pvm_pkmesg packed, and returns the number of its buffer.
func (l *library) unpackMessage() (int, error) {
	r, err := l.buffers.toUnpack()
	if err != nil {
		return 0, err
	}
	m, err := r.UnpackMessage()
	if err != nil {
		return 0, err
	}
	// The new message outlives the one that contained it.
	in, err := pack.NewReader(m.Encoding(), m.Typed(), slices.Clone(m.Payload()))
	if err != nil {
		return 0, err
	}
	e := m.Envelope()
	return l.buffers.add(&buffer{in: in, from: e.From, info: minfo{
		len: len(in.Payload()), ctx: int(e.Context), tag: int(e.Tag), enc: int(in.Encoding()),
	}}).id, nil
}
