// SPDX-License-Identifier: Apache-2.0

package flowfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A value is a value of a JSON file and where it stands.
type value struct {
	key  string // the way to it, such as groups[1].name
	name string // the last part of key
	raw  json.RawMessage
}

func (v value) errorf(format string, args ...any) error {
	return &Error{Key: v.key, Err: fmt.Errorf(format, args...)}
}

// unknown returns an error for a key that no one of known is.
func (v value) unknown(known ...string) error {
	for _, k := range known {
		if strings.EqualFold(k, v.name) {
			return v.errorf("the key is unknown; it is written %q", k)
		}
	}
	return v.errorf("the key is unknown; the keys are %s", strings.Join(known, ", "))
}

// short returns the beginning of the value.
func (v value) short() string {
	if s := string(v.raw); len(s) <= 40 {
		return s
	}
	return strings.ToValidUTF8(string(v.raw[:40]), "") + "…"
}

// root reads a file that is one object.
func root(text []byte) ([]value, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	var v value
	if err := d.Decode(&v.raw); err != nil {
		return nil, syntax(text, d, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("line %d: there is more text behind the object", line(text, d.InputOffset()))
	}
	return v.object()
}

// syntax returns an error of JSON with its line.
func syntax(text []byte, d *json.Decoder, err error) error {
	var s *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the file is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: the JSON is cut off", line(text, int64(len(text))))
	case errors.As(err, &s):
		return fmt.Errorf("line %d: the JSON is broken: %w", line(text, s.Offset), err)
	}
	return fmt.Errorf("line %d: the JSON is broken: %w", line(text, d.InputOffset()), err)
}

// line returns the number of the line at an offset.
func line(text []byte, offset int64) int {
	return 1 + bytes.Count(text[:min(offset, int64(len(text)))], []byte("\n"))
}

// object reads the fields of an object in their order. A name that repeats is an error.
func (v value) object() (all []value, err error) {
	d := json.NewDecoder(bytes.NewReader(v.raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, v.errorf("%s is not an object", v.short())
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, v.errorf("%w", err)
		}
		f := value{name: t.(string)}
		f.key = strings.TrimPrefix(v.key+"."+f.name, ".")
		if err := d.Decode(&f.raw); err != nil {
			return nil, f.errorf("%w", err)
		}
		if slices.ContainsFunc(all, func(o value) bool { return o.name == f.name }) {
			return nil, f.errorf("the key stands there twice")
		}
		all = append(all, f)
	}
	return all, nil
}

// list reads the elements of a list.
func (v value) list() (all []value, err error) {
	var raws []json.RawMessage
	if json.Unmarshal(v.raw, &raws) != nil || raws == nil {
		return nil, v.errorf("%s is not a list", v.short())
	}
	for i, raw := range raws {
		all = append(all, value{key: fmt.Sprintf("%s[%d]", v.key, i), raw: raw})
	}
	return all, nil
}

// anyText reads a text.
func (v value) anyText() (string, error) {
	var s *string
	if json.Unmarshal(v.raw, &s) != nil || s == nil {
		return "", v.errorf("%s is not a text", v.short())
	}
	return *s, nil
}

// text reads a text that is not empty.
func (v value) text() (string, error) {
	s, err := v.anyText()
	switch {
	case err != nil:
		return "", err
	case s == "":
		return "", v.errorf("the text is empty")
	case strings.Contains(s, "\x00"):
		return "", v.errorf("the text has a zero byte")
	}
	return s, nil
}

// count reads a whole number above zero.
func (v value) count() (int, error) {
	var n int32
	if json.Unmarshal(v.raw, &n) != nil || n < 1 {
		return 0, v.errorf("%s is not a whole number from 1 to %d", v.short(), 1<<31-1)
	}
	return int(n), nil
}

// oneOf reads a text that is one of known.
func (v value) oneOf(known []string) (string, error) {
	s, err := v.text()
	if err == nil && !slices.Contains(known, s) {
		err = v.errorf("%q is unknown; it can be %s", s, strings.Join(known, ", "))
	}
	return s, err
}
