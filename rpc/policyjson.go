// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// ParsePolicies reads policies from JSON in the form of the service configuration of gRPC:
//
//	{"methodConfig": [{
//		"name": [{"method": "put"}, {"service": "store"}, {}],
//		"timeout": "1.5s",
//		"waitForReady": true,
//		"retryPolicy": {
//			"maxAttempts": 4, "initialBackoff": "0.01s", "maxBackoff": "1s", "backoffMultiplier": 2,
//			"retryableStatusCodes": ["UNAVAILABLE"], "perAttemptRecvTimeout": "0.3s"
//		},
//		"idempotent": true, "enough": 2, "circuit": {"failures": 5, "rest": "1s"}
//	}]}
//
// A name with a service and a method is that of the call service/method, and one with a method only
// is that of the call. One with a service only stands for all calls that begin with service/, and
// {} for all calls. In place of the retryPolicy there may be a hedgingPolicy, with maxAttempts,
// hedgingDelay and nonFatalStatusCodes; it makes the call idempotent. The keys of the last line are
// rocl's own.
//
// A code stands for these errors:
//
//	CANCELLED            context.Canceled
//	INVALID_ARGUMENT     rocl.ErrValue, fs.ErrInvalid
//	DEADLINE_EXCEEDED    context.DeadlineExceeded
//	NOT_FOUND            fs.ErrNotExist
//	ALREADY_EXISTS       fs.ErrExist, rocl.ErrExists
//	PERMISSION_DENIED    fs.ErrPermission
//	RESOURCE_EXHAUSTED   ErrBusy, rocl.ErrFull, rocl.ErrLimit
//	OUT_OF_RANGE         io.EOF, bulk.ErrRange
//	UNIMPLEMENTED        ErrUnknownCall, errors.ErrUnsupported
//	INTERNAL             ErrPanic, ErrProtocol
//	UNAVAILABLE          rocl.ErrGone, ErrUnreachable, ErrNoReply, ErrNotFound and ErrPartial,
//	                     ErrClosed, ErrCircuit
//	DATA_LOSS            ErrChecksum
//
// A call that is not idempotent is retried only if MayRetry reports true too. ParsePolicies fails
// with ErrPolicy for any other key, code or form; the error names the key and the reason.
func ParsePolicies(config []byte) (Policies, error) {
	all := Policies{}
	err := object("", config, fields{"methodConfig": func(at string, raw []byte) error {
		return each(at, raw, func(at string, raw []byte) error { return all.method(at, raw) })
	}})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	return all, nil
}

// method adds the policy of one element of methodConfig.
func (all Policies) method(at string, raw []byte) error {
	var p Policy
	var names []string
	isHedged, isRetried := false, false
	err := object(at, raw, fields{
		"name": func(at string, raw []byte) error {
			return each(at, raw, func(at string, raw []byte) error {
				name, err := methodName(at, raw)
				names = append(names, name)
				return err
			})
		},
		"timeout":      duration(&p.Timeout, 0),
		"waitForReady": value(&p.WaitForReady),
		"retryPolicy": func(at string, raw []byte) error {
			isRetried = true
			return object(at, raw, fields{
				"maxAttempts":           number(&p.Attempts, 2, mostAttempts),
				"initialBackoff":        duration(&p.Backoff.Initial, 1),
				"maxBackoff":            duration(&p.Backoff.Max, 1),
				"backoffMultiplier":     number(&p.Backoff.Multiplier, math.SmallestNonzeroFloat64, 1e6),
				"retryableStatusCodes":  codes(&p.RetryOn),
				"perAttemptRecvTimeout": duration(&p.Attempt, 1),
			}, "maxAttempts", "initialBackoff", "maxBackoff", "backoffMultiplier", "retryableStatusCodes")
		},
		"hedgingPolicy": func(at string, raw []byte) error {
			isHedged, p.Idempotent = true, true
			return object(at, raw, fields{
				"maxAttempts":         number(&p.Attempts, 2, mostAttempts),
				"hedgingDelay":        duration(&p.Hedge, 0),
				"nonFatalStatusCodes": codes(&p.RetryOn),
			}, "maxAttempts")
		},
		"idempotent": value(&p.Idempotent),
		"enough":     number(&p.Enough, 1, math.MaxInt32),
		"circuit": func(at string, raw []byte) error {
			return object(at, raw, fields{
				"failures": number(&p.Circuit.Failures, 1, math.MaxInt32),
				"rest":     duration(&p.Circuit.Rest, 1),
			}, "failures")
		},
	}, "name")
	switch {
	case err != nil:
		return err
	case isHedged && isRetried:
		return fmt.Errorf("%s: retryPolicy and hedgingPolicy exclude each other", at)
	case isHedged && !p.Idempotent:
		return fmt.Errorf("%s.idempotent: hedging needs an idempotent call", at)
	}
	if isHedged {
		p.Hedge = max(p.Hedge, 1) // all attempts at once
	}
	for _, name := range names {
		if _, has := all[name]; has {
			return fmt.Errorf("%s.name: %q has two policies", at, name)
		}
		all[name] = p
	}
	return nil
}

// methodName returns the key of Policies for an element of "name".
func methodName(at string, raw []byte) (string, error) {
	var service, method string
	if err := object(at, raw, fields{"service": value(&service), "method": value(&method)}); err != nil {
		return "", err
	}
	if service != "" {
		service += "/"
	}
	return service + method, nil
}

// refused has the reasons why keys of gRPC are refused.
var refused = map[string]string{
	"loadBalancingPolicy":     "Finding, Nearest and Among choose the provider",
	"loadBalancingConfig":     "Finding, Nearest and Among choose the provider",
	"retryThrottling":         "a circuit, for each provider, is in its place",
	"healthCheckConfig":       "a server that drains or has ended is not found",
	"maxRequestMessageBytes":  "arguments of any size travel: see CallOverflow",
	"maxResponseMessageBytes": "results of any size travel: see WithOverflow",
}

// fields has functions that read the values of an object by their keys. at says where a value is.
type fields map[string]func(at string, raw []byte) error

// object reads an object, which must have the keys needs and no other ones than those of f.
func object(at string, raw []byte, f fields, needs ...string) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return invalid(at, "not an object", err)
	}
	var had []string
	for d.More() {
		t, err := d.Token()
		key, _ := t.(string)
		var v json.RawMessage
		if err == nil {
			err = d.Decode(&v)
		}
		in := strings.TrimPrefix(at+"."+key, ".")
		switch read := f[key]; {
		case err != nil:
			return invalid(in, "not JSON", err)
		case slices.Contains(had, key):
			return invalid(in, "the key occurs twice", nil)
		case read == nil:
			return invalid(in, cmp.Or(refused[key], "unknown key"), nil)
		default:
			if err := read(in, v); err != nil {
				return err
			}
		}
		had = append(had, key)
	}
	if _, err := d.Token(); err != nil {
		return invalid(at, "not JSON", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid(at, "more than one value", err)
	}
	for _, key := range needs {
		if !slices.Contains(had, key) {
			return invalid(strings.TrimPrefix(at+"."+key, "."), "the key is missing", nil)
		}
	}
	return nil
}

// invalid returns an error about a value.
func invalid(at, why string, err error) error {
	at = cmp.Or(at, "the configuration")
	if err != nil {
		return fmt.Errorf("%s: %s: %w", at, why, err)
	}
	return fmt.Errorf("%s: %s", at, why)
}

// each reads the elements of an array, which must not be empty.
func each(at string, raw []byte, read func(at string, raw []byte) error) error {
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil || len(all) == 0 {
		return invalid(at, "not an array with elements", err)
	}
	for i, v := range all {
		if err := read(fmt.Sprintf("%s[%d]", at, i), v); err != nil {
			return err
		}
	}
	return nil
}

func value[T bool | string](v *T) func(string, []byte) error {
	return func(at string, raw []byte) error {
		if err := json.Unmarshal(raw, v); err != nil || string(raw) == "null" {
			return invalid(at, fmt.Sprintf("not a %T", *v), err)
		}
		return nil
	}
}

func number[T int | float64](v *T, least, most T) func(string, []byte) error {
	return func(at string, raw []byte) error {
		if err := json.Unmarshal(raw, v); err != nil || string(raw) == "null" || *v < least || *v > most {
			return invalid(at, fmt.Sprintf("not a number from %v to %v", least, most), err)
		}
		return nil
	}
}

// duration reads a duration such as "1.5s".
func duration(v *time.Duration, least time.Duration) func(string, []byte) error {
	return func(at string, raw []byte) error {
		var text string
		err := json.Unmarshal(raw, &text)
		if err == nil {
			*v, err = time.ParseDuration(text)
		}
		if err != nil || !strings.HasSuffix(text, "s") || *v < least {
			return invalid(at, `not a duration in seconds such as "1.5s", or too short`, err)
		}
		return nil
	}
}

// A code is a status code of gRPC, with the errors that it stands for.
type code struct {
	name   string
	number int
	errs   []error
}

var allCodes = []code{
	{"CANCELLED", 1, []error{context.Canceled}},
	{"INVALID_ARGUMENT", 3, []error{rocl.ErrValue, fs.ErrInvalid}},
	{"DEADLINE_EXCEEDED", 4, []error{context.DeadlineExceeded}},
	{"NOT_FOUND", 5, []error{fs.ErrNotExist}},
	{"ALREADY_EXISTS", 6, []error{fs.ErrExist, rocl.ErrExists}},
	{"PERMISSION_DENIED", 7, []error{fs.ErrPermission}},
	{"RESOURCE_EXHAUSTED", 8, []error{ErrBusy, rocl.ErrFull, rocl.ErrLimit}},
	{"OUT_OF_RANGE", 11, []error{io.EOF, bulk.ErrRange}},
	{"UNIMPLEMENTED", 12, []error{ErrUnknownCall, errors.ErrUnsupported}},
	{"INTERNAL", 13, []error{ErrPanic, ErrProtocol}},
	{"UNAVAILABLE", 14, []error{rocl.ErrGone, rocl.ErrUnreachable, rocl.ErrNoReply, rocl.ErrNotFound, rocl.ErrPartial, ErrClosed, ErrCircuit}},
	{"DATA_LOSS", 15, []error{ErrChecksum}},
}

// codes reads an array of status codes, by name or number.
func codes(v *[]error) func(string, []byte) error {
	return func(at string, raw []byte) error {
		return each(at, raw, func(at string, raw []byte) error {
			var name string
			var number int
			if json.Unmarshal(raw, &name) != nil && json.Unmarshal(raw, &number) != nil {
				return invalid(at, "neither the name of a code nor its number", nil)
			}
			for _, c := range allCodes {
				if strings.EqualFold(c.name, name) || c.number == number {
					*v = append(*v, c.errs...)
					return nil
				}
			}
			return invalid(at, "no error of rocl has the code "+string(raw), nil)
		})
	}
}
