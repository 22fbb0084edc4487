// SPDX-License-Identifier: Apache-2.0

package subsystest

import (
	"bytes"
	"testing"

	"github.com/rocl-go/rocl/subsys"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSplit(t *testing.T) {
	var data []byte
	for i := range 5 {
		h := subsys.Header{Len: uint32(i * 3), Type: 16, Seq: uint32(i)}
		var w [subsys.HeaderLen]byte
		h.Put(w[:])
		data = append(append(data, w[:]...), bytes.Repeat([]byte{byte(i)}, i*3)...)
	}
	batch := subsys.Frame{Data: data}
	batch.Type = subsys.TypeBatch
	fs := Split(&batch, nil)
	if len(fs) != 5 {
		t.Fatalf("%d frames of 5", len(fs))
	}
	for i := range fs {
		if fs[i].Seq != uint32(i) || !bytes.Equal(fs[i].Data, bytes.Repeat([]byte{byte(i)}, i*3)) || cap(fs[i].Data) != len(fs[i].Data) {
			t.Errorf("frame %d is %+v", i, fs[i])
		}
	}
}
