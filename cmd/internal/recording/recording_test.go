// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// moment returns the view n seconds after a start: two contexts with a resource each.
func moment(n int) *observe.View {
	v := &observe.View{Taken: time.Date(2026, 11, 27, 18, 0, n, 0, time.UTC)}
	for i := range 2 {
		c := observe.Context{Snapshot: rocl.Snapshot{Context: resource.MakeGID(7, uint64(i+1), 0), PID: 100 + i}}
		r := rocl.ResourceSnapshot{Name: fmt.Sprintf("name=shard n=%d", i)}
		r.Resource, r.Received = c.Context.WithSerial(1), uint64(n*n)
		c.Resources = append(c.Resources, r)
		v.Contexts = append(v.Contexts, c)
	}
	return v
}

// recorded returns a finished recording of n views.
func recorded(t testing.TB, n int) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.gz")
	w := try.Get(Create(path))(t)
	for i := range n {
		try.OK(t, w.Add(moment(i)))
	}
	try.OK(t, w.Finish())
	return try.Get(os.ReadFile(path))(t)
}

// views reads a recording as far as it goes.
func views(b []byte) (all []*observe.View, err error) {
	p, err := NewReader(bytes.NewReader(b))
	for err == nil {
		var v *observe.View
		if v, err = p.Read(); err == nil {
			all = append(all, v)
		}
	}
	return all, err
}

// A recording that was cut off, wherever that was, has all views that were written before.
//
// Promise (Observing): A recording that was cut off can be replayed as far as it goes.
func TestCutOff(t *testing.T) {
	b := recorded(t, 6)
	most := 0
	for n := range b {
		all, err := views(b[:n])
		if err == nil || err == io.EOF && len(all) < 6 {
			t.Fatalf("%d of %d bytes: %d views, %v", n, len(b), len(all), err)
		}
		if len(all) < most {
			t.Fatalf("%d of %d bytes: %d views; fewer bytes had %d", n, len(b), len(all), most)
		}
		most = len(all)
	}
	if all, err := views(b); len(all) != 6 || err != io.EOF {
		t.Errorf("the whole file: %d views, %v", len(all), err)
	}
	if most != 6 {
		t.Errorf("all but the last byte: %d views", most)
	}
}

// The file has another name until it is finished, only its owner may read it, and neither file may
// exist.
func TestWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.gz")
	r := try.Get(Create(path))(t)
	try.OK(t, r.Add(moment(0)))
	if _, err := os.Stat(path); err == nil {
		t.Error("the file has its name before it is finished")
	}
	if all, err := views(try.Get(os.ReadFile(path + ".part"))(t)); len(all) != 1 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after one view: %d, %v", len(all), err)
	}
	try.Rejects(Create(path))(t, "a second writer")
	try.OK(t, r.Finish())
	if i := try.Get(os.Stat(path))(t); i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", i.Mode())
	}
	try.Rejects(Create(path))(t, "over a file")
	r = try.Get(Create(path + "2"))(t)
	r.size = maxFile
	try.Fails(r.Add(moment(0)))(t, ErrFull, "a full file")
	try.OK(t, r.Finish())
}

func zipped(text string) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.Bytes()
}

// What is no recording is an error, not a view.
func TestHostileFiles(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":  nil,
		"text":     []byte("{}\n"),
		"not JSON": zipped("hello\n"),
		"depth":    zipped(`{"contexts":[{"x":` + strings.Repeat("[", 100_000)),
		"many":     zipped(`{"contexts":[` + strings.Repeat("0,", maxValues+1) + "0]}\n"),
		"a line":   zipped(strings.Repeat(" ", maxLine+1) + "{}\n"),
		"types":    zipped(`{"contexts":{"resources":-1}}` + "\n"),
	} {
		if all, err := views(b); len(all) > 0 || err == nil || err == io.EOF {
			t.Errorf("%s: %d views, %v", name, len(all), err)
		}
	}
	if all, err := views(zipped("")); len(all) > 0 || err != io.EOF {
		t.Errorf("an empty file: %d views, %v", len(all), err)
	}
}

// A pattern matches the names of resources.
func TestMatch(t *testing.T) {
	v := moment(0)
	second := v.Contexts[1].Resources[0].Resource
	got := Match(v, try.Get(rocl.Parse("name=shard n=1"))(t))
	if len(got) != 2 || !got[second] || !got[second.Context()] {
		t.Errorf("%v", got)
	}
	v.Contexts[1].Resources[0].Name = `name="`
	try.Equal(t, len(Match(v, try.Get(rocl.Parse("name=shard n=1"))(t))), 0, "a name that is no list of attributes")
}
