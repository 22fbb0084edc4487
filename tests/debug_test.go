// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The archive of rocl debug has all its parts, of a member of a sealed cluster with a message that
// waits, and none of the secrets: neither keys, nor what is derived of them, nor payloads. It is
// for its user alone, and never replaces a file.
//
// Promise (Commands): The archive of `rocl debug` has no key and no byte of a payload.
func TestDebug(t *testing.T) {
	sock, keyFile := socket(t), clusterKey(t)
	start(t, `"serving"`, dirserver, "--socket", sock, "--bind", freePort(t), "--key-file", keyFile, "--cluster", "lab", "--log-format", "json")
	const payload = "a payload that nobody reads"
	a, b := open(t, sock), open(t, sock)
	r := register(t, a, lib.Attrs{"name": "box"})
	if err := register(t, b, lib.Attrs{"name": "sender"}).SendBytes(eventually.Context(t), r.ID(), 1, []byte(payload)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "debug.tar.gz")
	out, err := exec.Command(rocl, "debug", "--socket", sock, "-o", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Read it before you send it") {
		t.Fatalf("%v: %s", err, out)
	}
	if fi := try.Get(os.Stat(file))(t); fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode())
	}
	parts := untar(t, file)
	for _, name := range []string{"doctor.txt", "versions.json", "directory.json", "nodes.json", "contexts.json", "snapshots-1.json", "snapshots-2.json", "config.toml", "log.txt", "goroutines.txt", "heap.pprof", "cpu.pprof"} {
		if _, ok := parts[name]; !ok || !strings.Contains(string(out), name) {
			t.Errorf("no %s; there is %s", name, out)
		}
	}
	for name, part := range map[string]string{"config.toml": keyFile, "log.txt": "cluster: this node is a member", "snapshots-2.json": r.ID().String(), "doctor.txt": "directory", "directory.json": `"keys"`} {
		if !bytes.Contains(parts[name], []byte(part)) {
			t.Errorf("%s has no %q: %s", name, part, parts[name])
		}
	}
	key := bytes.TrimSpace(try.Get(os.ReadFile(keyFile))(t))
	link := cluster.LinkKey("lab", key)
	secrets := [][]byte{key, link[:], []byte(payload)}
	ofNode := strings.Fields(string(try.Get(os.ReadFile(sock + ".node"))(t))) // rocl node … key HEX
	nodeKey := ofNode[slices.Index(ofNode, "key")+1]
	secrets = append(secrets, []byte(nodeKey), try.Get(hex.DecodeString(nodeKey))(t))
	for name, part := range parts {
		for i, s := range secrets {
			for _, form := range []string{string(s), hex.EncodeToString(s), base64.StdEncoding.EncodeToString(s)[:len(s)], base64.RawURLEncoding.EncodeToString(s)} {
				if bytes.Contains(part, []byte(form)) {
					t.Errorf("%s has secret %d", name, i)
				}
			}
		}
	}
	if out, err := exec.Command(rocl, "debug", "--socket", sock, "-o", keyFile).CombinedOutput(); err == nil || !strings.Contains(string(out), "exists") {
		t.Errorf("%v: %s", err, out)
	}
}

// untar returns the files of an archive by name. Profiles are unpacked.
func untar(t *testing.T, file string) map[string][]byte {
	t.Helper()
	parts := map[string][]byte{}
	r := tar.NewReader(unzip(t, try.Get(os.ReadFile(file))(t)))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return parts
		}
		try.OK(t, err)
		b := try.Get(io.ReadAll(r))(t)
		if strings.HasSuffix(h.Name, ".pprof") {
			b = try.Get(io.ReadAll(unzip(t, b)))(t)
		}
		parts[strings.TrimPrefix(h.Name, "rocl-debug/")] = b
	}
}

func unzip(t *testing.T, b []byte) io.Reader {
	t.Helper()
	return try.Get(gzip.NewReader(bytes.NewReader(b)))(t)
}
