// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
func (c *Config) UnmarshalJSON(data []byte) error {
	*c = Config{}
	return object(fields{
		"pools":        array(&c.Pools, (*PoolConfig).reader),
		"streams":      array(&c.Streams, (*StreamConfig).reader),
		"default_pool": value(&c.DefaultPool),
	})("", data)
}

// UnmarshalJSON reads an entry of "pools", for [Set.AddPool], as strictly as [ParseConfig].
func (p *PoolConfig) UnmarshalJSON(data []byte) error {
	*p = PoolConfig{}
	return p.reader()("", data)
}

// UnmarshalJSON reads an entry of "streams", for [Set.AddStream], as strictly as [ParseConfig].
func (s *StreamConfig) UnmarshalJSON(data []byte) error {
	*s = StreamConfig{}
	return s.reader()("", data)
}

func (p *PoolConfig) reader() reader {
	return object(fields{
		"name":      name(&p.Name),
		"policy":    value(&p.Policy),
		"workers":   value(&p.Workers),
		"queue":     atLeastOne(&p.Queue),
		"when_full": value(&p.WhenFull),
	})
}

func (s *StreamConfig) reader() reader {
	return object(fields{
		"name":        name(&s.Name),
		"pools":       array(&s.Pools, value),
		"scheduler":   value(&s.Scheduler),
		"weights":     array(&s.Weights, value),
		"lock_thread": value(&s.LockThread),
		"cores":       array(&s.Cores, value),
	})
}

// reader reads a value at a path.
type reader func(path string, raw json.RawMessage) error

// fields has the keys of an object with the readers of their values.
type fields map[string]reader

// value returns a reader that works as encoding/json does, except that null is not a value.
func value[T any](to *T) reader {
	return func(path string, raw json.RawMessage) error {
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

// name returns a reader of a name, which must not be empty if it is given.
func name(to *string) reader {
	return checked(to, func() bool { return *to != "" }, "must not be empty")
}

// atLeastOne returns a reader of a number that must not be 0, because a missing number has another
// meaning.
func atLeastOne(to *int) reader {
	return checked(to, func() bool { return *to >= 1 }, "must be at least 1")
}

// checked returns a reader of a value for which isOK must then be true; must says so.
func checked[T any](to *T, isOK func() bool, must string) reader {
	return func(path string, raw json.RawMessage) error {
		if err := value(to)(path, raw); err != nil {
			return err
		}
		if !isOK() {
			return configError(path, must)
		}
		return nil
	}
}

// array returns a reader of a list. of returns the reader of each element.
func array[T any](to *[]T, of func(*T) reader) reader {
	return func(path string, raw json.RawMessage) error {
		var list []json.RawMessage
		if err := value(&list)(path, raw); err != nil {
			return err
		}
		*to = make([]T, len(list))
		for i, raw := range list {
			if err := of(&(*to)[i])(fmt.Sprintf("%s[%d]", path, i), raw); err != nil {
				return err
			}
		}
		return nil
	}
}

// object returns a reader of an object with the known keys.
func object(known fields) reader {
	return func(path string, raw json.RawMessage) error {
		d := json.NewDecoder(bytes.NewReader(raw))
		if t, err := d.Token(); err != nil || t != json.Delim('{') {
			return configError(path, "must be an object")
		}
		seen := make(fields)
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return configError(path, err.Error())
			}
			key := t.(string)
			at := strings.TrimPrefix(path+"."+printable(key), ".")
			read := known[key]
			switch {
			case read == nil:
				return configError(at, "no such key")
			case seen[key] != nil:
				return configError(at, "occurs twice")
			}
			seen[key] = read
			var raw json.RawMessage
			if err := d.Decode(&raw); err != nil {
				return configError(at, err.Error())
			}
			if err := read(at, raw); err != nil {
				return err
			}
		}
		return nil
	}
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
