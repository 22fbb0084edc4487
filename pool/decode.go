// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// ParseConfig reads a configuration in JSON. It refuses unknown keys, duplicate keys, and values of
// other types. The error names the path and matches ErrConfig. [Config.Validate] finds other
// errors.
//
// (Package encoding/json would name neither the index in a path nor duplicate keys.)
func ParseConfig(data []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(data))
	var all json.RawMessage
	if err := d.Decode(&all); err != nil {
		return c, configError("", "no JSON: "+err.Error())
	}
	if _, err := d.Token(); err != io.EOF {
		return c, configError("", "there is more behind the JSON object")
	}
	err := c.UnmarshalJSON(all)
	return c, err
}

// UnmarshalJSON reads a configuration that is part of another one, as strictly as [ParseConfig].
func (c *Config) UnmarshalJSON(data []byte) error { return readNew(c, data) }

// UnmarshalJSON reads an entry of "pools", for [Set.AddPool], as strictly as [ParseConfig].
func (p *PoolConfig) UnmarshalJSON(data []byte) error { return readNew(p, data) }

// UnmarshalJSON reads an entry of "streams", for [Set.AddStream], as strictly as [ParseConfig].
func (s *StreamConfig) UnmarshalJSON(data []byte) error { return readNew(s, data) }

// readNew reads an object into a struct, which loses what it has had.
func readNew[T any](to *T, data []byte) error {
	*to = *new(T)
	return readObject("", data, reflect.ValueOf(to).Elem())
}

// readObject reads an object at a path into a struct, whose `json` tags name the keys.
func readObject(path string, raw json.RawMessage, to reflect.Value) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return configError(path, "must be an object")
	}
	seen := make(map[string]bool)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return configError(path, err.Error())
		}
		key := t.(string)
		at := strings.TrimPrefix(path+"."+printable(key), ".")
		field := fieldOf(to, key)
		switch {
		case !field.IsValid():
			return configError(at, "no such key")
		case seen[key]:
			return configError(at, "occurs twice")
		}
		seen[key] = true
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return configError(at, err.Error())
		}
		if err := read(at, raw, field); err != nil {
			return err
		}
		switch { // if the key is missing, these have another meaning
		case key == "name" && field.IsZero():
			return configError(at, "must not be empty")
		case key == "queue" && field.Int() < 1:
			return configError(at, "must be at least 1")
		}
	}
	return nil
}

// fieldOf returns the field of a struct for a key, or the zero Value.
func fieldOf(of reflect.Value, key string) reflect.Value {
	for f, v := range of.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key {
			return v
		}
	}
	return reflect.Value{}
}

// read reads a value at a path.
func read(path string, raw json.RawMessage, to reflect.Value) error {
	switch to.Kind() {
	case reflect.Struct:
		return readObject(path, raw, to)
	case reflect.Slice:
		var list []json.RawMessage
		if err := readValue(path, raw, &list); err != nil {
			return err
		}
		to.Set(reflect.MakeSlice(to.Type(), len(list), len(list)))
		for i, raw := range list {
			if err := read(fmt.Sprintf("%s[%d]", path, i), raw, to.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return readValue(path, raw, to.Addr().Interface())
}

// readValue reads a value as encoding/json does, except that null is not a value.
func readValue(path string, raw json.RawMessage, to any) error {
	err := json.Unmarshal(raw, to)
	var wrong *json.UnmarshalTypeError
	switch {
	case string(raw) == "null":
		return configError(path, "must not be null")
	case errors.As(err, &wrong):
		return configError(path, fmt.Sprintf("must be of type %s, not %s", jsonType(wrong.Type.Kind().String()), wrong.Value))
	case err != nil:
		return configError(path, err.Error())
	}
	return nil
}

// jsonType returns the JSON name of a Go type.
func jsonType(kind string) string {
	switch kind {
	case "int":
		return "whole number"
	case "slice":
		return "list"
	case "bool":
		return "boolean"
	}
	return kind
}

// printable returns an unknown key, quoted and shortened if necessary.
func printable(key string) string {
	if key != "" && badName(key) == "" {
		return key
	}
	if len(key) > 64 {
		key = key[:64] + "…"
	}
	return strconv.Quote(key)
}
