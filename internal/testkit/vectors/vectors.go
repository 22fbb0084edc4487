// SPDX-License-Identifier: Apache-2.0

// Package vectors compares encoded values with the golden bytes in docs/vectors, which show clients
// in other languages what docs/PROTOCOL.md says.
package vectors

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden bytes to docs/vectors")

// A Vector is an encoded value.
type Vector struct {
	Name   string         `json:"name"`
	Fields map[string]any `json:"fields,omitempty"` // what is encoded; bytes in it are hexadecimal
	Bytes  string         `json:"bytes"`            // hexadecimal
}

// Of returns the vector of b.
func Of(name string, b []byte, fields map[string]any) Vector {
	return Vector{name, fields, hex.EncodeToString(b)}
}

// Check compares all with the file docs/vectors/NAME.json. With the flag -update it writes the
// file.
func Check(t testing.TB, name string, all []Vector) {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(all); err != nil {
		t.Fatal(err)
	}
	text := b.Bytes()
	file := filepath.Join(root(t), "docs", "vectors", name+".json")
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var golden []Vector
	if err := json.Unmarshal(want, &golden); err != nil {
		t.Fatal(err)
	}
	for i, v := range all {
		if i < len(golden) && v.Bytes != golden[i].Bytes {
			t.Errorf("%s is\n%s, want\n%s", v.Name, v.Bytes, golden[i].Bytes)
		}
	}
	if string(text) != string(want) {
		t.Errorf("%s is not what this test makes: run it with -update if the wire format is to change", file)
	}
}

// root returns the folder of the module.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "docs", "vectors")); err == nil {
			return dir
		}
	}
	t.Fatal("docs/vectors is not in a folder above the test")
	return ""
}
