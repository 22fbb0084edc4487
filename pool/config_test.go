// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// TestAccepted has configurations that are accepted, and what becomes of them.
// In the results N stands for the number of processors.
//
// Promise (Package pool): A wrong configuration is refused with the path. A dump, when loaded,
// gives an equal set. See also TestRefused.
func TestAccepted(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:                                                                    `{"pools":[{"name":"default","policy":"fifo","workers":N}],"default_pool":"default"}`,
		`{"pools":[]}`:                                                          `{"pools":[{"name":"default","policy":"fifo","workers":N}],"default_pool":"default"}`,
		`{"pools":[{}]}`:                                                        `{"pools":[{"name":"pool-0","policy":"fifo","workers":N}],"default_pool":"pool-0"}`,
		` {"pools":[{"name":"a"}]} `:                                            `{"pools":[{"name":"a","policy":"fifo","workers":N}],"default_pool":"a"}`,
		`{"pools":[{"name":"pool-1"},{}]}`:                                      `{"pools":[{"name":"pool-1","policy":"fifo","workers":N},{"name":"pool-2","policy":"fifo","workers":N}],"default_pool":"pool-1"}`,
		`{"pools":[{},{"name":"pool-0"}]}`:                                      `{"pools":[{"name":"pool-1","policy":"fifo","workers":N},{"name":"pool-0","policy":"fifo","workers":N}],"default_pool":"pool-1"}`,
		`{"pools":[{"name":"kv/put.x_1:é-2"}]}`:                                 `{"pools":[{"name":"kv/put.x_1:é-2","policy":"fifo","workers":N}],"default_pool":"kv/put.x_1:é-2"}`,
		`{"pools":[{"policy":"fifo"}]}`:                                         `{"pools":[{"name":"pool-0","policy":"fifo","workers":N}],"default_pool":"pool-0"}`,
		`{"pools":[{"policy":"priority"}]}`:                                     `{"pools":[{"name":"pool-0","policy":"priority","workers":N}],"default_pool":"pool-0"}`,
		`{"pools":[{"policy":"earliest_first"}]}`:                               `{"pools":[{"name":"pool-0","policy":"earliest_first","workers":N}],"default_pool":"pool-0"}`,
		`{"pools":[{"policy":"keyed"}]}`:                                        `{"pools":[{"name":"pool-0","policy":"keyed","workers":N}],"default_pool":"pool-0"}`,
		`{"pools":[{"policy":"inline"}]}`:                                       `{"pools":[{"name":"pool-0","policy":"inline","workers":"none"}],"default_pool":"pool-0"}`,
		`{"pools":[{"policy":"inline","workers":"none"}]}`:                      `{"pools":[{"name":"pool-0","policy":"inline","workers":"none"}],"default_pool":"pool-0"}`,
		`{"pools":[{"workers":3}]}`:                                             `{"pools":[{"name":"pool-0","policy":"fifo","workers":3}],"default_pool":"pool-0"}`,
		`{"pools":[{"workers":"auto"}]}`:                                        `{"pools":[{"name":"pool-0","policy":"fifo","workers":N}],"default_pool":"pool-0"}`,
		`{"pools":[{"workers":"none"}]}`:                                        `{"pools":[{"name":"pool-0","policy":"fifo","workers":"none"}],"default_pool":"pool-0"}`,
		`{"pools":[{"workers":"unbounded"}]}`:                                   `{"pools":[{"name":"pool-0","policy":"fifo","workers":"unbounded"}],"default_pool":"pool-0"}`,
		`{"pools":[{"queue":1}]}`:                                               `{"pools":[{"name":"pool-0","policy":"fifo","workers":N,"queue":1,"when_full":"reject"}],"default_pool":"pool-0"}`,
		`{"pools":[{"queue":9,"when_full":"reject"}]}`:                          `{"pools":[{"name":"pool-0","policy":"fifo","workers":N,"queue":9,"when_full":"reject"}],"default_pool":"pool-0"}`,
		`{"pools":[{"queue":9,"when_full":"wait"}]}`:                            `{"pools":[{"name":"pool-0","policy":"fifo","workers":N,"queue":9,"when_full":"wait"}],"default_pool":"pool-0"}`,
		`{"pools":[{"name":"a"},{"name":"b"}],"default_pool":"b"}`:              `{"pools":[{"name":"a","policy":"fifo","workers":N},{"name":"b","policy":"fifo","workers":N}],"default_pool":"b"}`,
		`{"default_pool":"default"}`:                                            `{"pools":[{"name":"default","policy":"fifo","workers":N}],"default_pool":"default"}`,
		`{"streams":[]}`:                                                        `{"pools":[{"name":"default","policy":"fifo","workers":N}],"default_pool":"default"}`,
		`{"streams":[{"pools":["default"]}]}`:                                   `{"pools":[{"name":"default","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["default"],"scheduler":"in_order"}],"default_pool":"default"}`,
		`{"pools":[{}],"streams":[{"pools":["pool-0"]}]}`:                       `{"pools":[{"name":"pool-0","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["pool-0"],"scheduler":"in_order"}],"default_pool":"pool-0"}`,
		`{"pools":[{"workers":2}],"streams":[{"name":"s","pools":["pool-0"]}]}`: `{"pools":[{"name":"pool-0","policy":"fifo","workers":2}],"streams":[{"name":"s","pools":["pool-0"],"scheduler":"in_order"}],"default_pool":"pool-0"}`,
		`{"streams":[{"name":"default","pools":["default"],"scheduler":"round_robin"}]}`:            `{"pools":[{"name":"default","policy":"fifo","workers":"none"}],"streams":[{"name":"default","pools":["default"],"scheduler":"round_robin"}],"default_pool":"default"}`,
		`{"pools":[{},{}],"streams":[{"pools":["pool-1","pool-0"],"scheduler":"weighted_random"}]}`: `{"pools":[{"name":"pool-0","policy":"fifo","workers":"none"},{"name":"pool-1","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["pool-1","pool-0"],"scheduler":"weighted_random","weights":[1,1]}],"default_pool":"pool-0"}`,
		`{"streams":[{"pools":["default"],"scheduler":"weighted_random","weights":[7]}]}`:           `{"pools":[{"name":"default","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["default"],"scheduler":"weighted_random","weights":[7]}],"default_pool":"default"}`,
		`{"streams":[{"pools":["default"],"lock_thread":true}]}`:                                    `{"pools":[{"name":"default","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["default"],"scheduler":"in_order","lock_thread":true}],"default_pool":"default"}`,
		`{"streams":[{"pools":["default"],"lock_thread":false,"cores":[]}]}`:                        `{"pools":[{"name":"default","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["default"],"scheduler":"in_order"}],"default_pool":"default"}`,
		`{"streams":[{"pools":["default"]},{"pools":["default"]}]}`:                                 `{"pools":[{"name":"default","policy":"fifo","workers":"none"}],"streams":[{"name":"stream-0","pools":["default"],"scheduler":"in_order"},{"name":"stream-1","pools":["default"],"scheduler":"in_order"}],"default_pool":"default"}`,
	} {
		want = strings.ReplaceAll(want, "N", fmt.Sprint(runtime.GOMAXPROCS(0)))
		s, err := Load([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		got, err := json.Marshal(s.Config())
		if err != nil || string(got) != want {
			t.Errorf("%s\n gives %s\n want  %s", in, got, want)
		}
		again, err := Load(s.Dump())
		if err != nil {
			t.Errorf("%s: the dump is refused: %v", in, err)
			continue
		}
		if !reflect.DeepEqual(s.Config(), again.Config()) {
			t.Errorf("%s: the dump gives %+v", in, again.Config())
		}
		closeSet(t, s)
		closeSet(t, again)
	}
}

// TestRefused has configurations that are refused, with the errors.
func TestRefused(t *testing.T) {
	for in, want := range map[string]string{
		``:                            "no JSON: EOF",
		`{`:                           "no JSON: unexpected EOF",
		`{} {}`:                       "there is more behind the JSON object",
		`[]`:                          "must be an object",
		`null`:                        "must be an object",
		`{"pool":[]}`:                 "pool: no such key",
		`{"Pools":[]}`:                "Pools: no such key",
		`{"a\nb\u001b[0m":1}`:         `"a\nb\x1b[0m": no such key`,
		`{"pools":[{"":1}]}`:          `pools[0]."": no such key`,
		`{"pools":[{"queue":1e400}]}`: "pools[0].queue: must be of type whole number, not number 1e400",
		`{"pools":[{"queue":1e2}]}`:   "pools[0].queue: must be of type whole number, not number 1e2",
		`{"pools":[{"queue":99999999999999999999}]}`:   "pools[0].queue: must be of type whole number, not number 99999999999999999999",
		`{"pools":[{"workers":99999999999999999999}]}`: `pools[0].workers: must be a number of at least 1, "auto", "none" or "unbounded"`,
		`{"pools":{}}`:                                           "pools: must be of type list, not object",
		`{"pools":null}`:                                         "pools: must not be null",
		`{"pools":[1]}`:                                          "pools[0]: must be an object",
		`{"pools":[{},null]}`:                                    "pools[1]: must be an object",
		`{"pools":[{"name":"a"}],"pools":[]}`:                    "pools: occurs twice",
		`{"pools":[{"kind":"fifo_wait"}]}`:                       "pools[0].kind: no such key",
		`{"pools":[{"name":"a","name":"b"}]}`:                    "pools[0].name: occurs twice",
		`{"pools":[{"name":7}]}`:                                 "pools[0].name: must be of type string, not number",
		`{"pools":[{"name":""}]}`:                                "pools[0].name: must not be empty",
		`{"pools":[{"name":"a b"}]}`:                             "pools[0].name: \"a b\" has the character ' ', and may have letters, digits and _ - . : /",
		`{"pools":[{"name":"` + strings.Repeat("a", 65) + `"}]}`: "pools[0].name: has 65 bytes, more than 64",
		`{"pools":[{"name":"a"},{},{"name":"a"}]}`:               `pools[2].name: "a" is the name of pools[0]`,
		`{"pools":[{"policy":"fifo_wait"}]}`:                     `pools[0].policy: "fifo_wait" is none of fifo, priority, earliest_first, keyed, inline`,
		`{"pools":[{"policy":1}]}`:                               "pools[0].policy: must be of type string, not number",
		`{"pools":[{"workers":0}]}`:                              `pools[0].workers: must be a number of at least 1, "auto", "none" or "unbounded"`,
		`{"pools":[{"workers":-1}]}`:                             `pools[0].workers: must be a number of at least 1, "auto", "none" or "unbounded"`,
		`{"pools":[{"workers":1.5}]}`:                            `pools[0].workers: must be a number of at least 1, "auto", "none" or "unbounded"`,
		`{"pools":[{"workers":"many"}]}`:                         `pools[0].workers: must be a number of at least 1, "auto", "none" or "unbounded"`,
		`{"pools":[{"workers":null}]}`:                           `pools[0].workers: must not be null`,
		`{"pools":[{"queue":0}]}`:                                "pools[0].queue: must be at least 1",
		`{"pools":[{"queue":-1}]}`:                               "pools[0].queue: must be at least 1",
		`{"pools":[{"queue":"big"}]}`:                            "pools[0].queue: must be of type whole number, not string",
		`{"pools":[{"queue":1.5}]}`:                              "pools[0].queue: must be of type whole number, not number 1.5",
		`{"pools":[{"when_full":"wait"}]}`:                       "pools[0].when_full: has no effect without queue",
		`{"pools":[{"queue":1,"when_full":"drop"}]}`:             `pools[0].when_full: "drop" is neither reject nor wait`,
		`{"pools":[{"policy":"inline","workers":1}]}`:            `pools[0]: policy "inline" has no workers, queue or when_full`,
		`{"pools":[{"policy":"inline","queue":1}]}`:              `pools[0]: policy "inline" has no workers, queue or when_full`,
		`{"default_pool":"x"}`:                                   `default_pool: no pool is named "x"`,
		`{"default_pool":0}`:                                     "default_pool: must be of type string, not number",
		`{"rpc_pool":0}`:                                         "rpc_pool: no such key",
		`{"streams":1}`:                                          "streams: must be of type list, not number",
		`{"streams":[{}]}`:                                       "streams[0].pools: must name at least one pool",
		`{"streams":[{"pools":[]}]}`:                             "streams[0].pools: must name at least one pool",
		`{"streams":[{"pools":[0]}]}`:                            "streams[0].pools[0]: must be of type string, not number",
		`{"streams":[{"pools":["default","x"]}]}`:                `streams[0].pools[1]: no pool is named "x"`,
		`{"streams":[{"pools":["default","default"]}]}`:          `streams[0].pools[1]: "default" is named twice`,
		`{"pools":[{"name":"a","policy":"inline"}],"streams":[{"pools":["a"]}]}`:             `streams[0].pools[0]: pool "a" has policy "inline", which no stream serves`,
		`{"streams":[{"name":"s","pools":["default"]},{"name":"s","pools":["default"]}]}`:    `streams[1].name: "s" is the name of streams[0]`,
		`{"streams":[{"name":"s!","pools":["default"]}]}`:                                    `streams[0].name: "s!" has the character '!', and may have letters, digits and _ - . : /`,
		`{"streams":[{"pools":["default"],"scheduler":"basic_wait"}]}`:                       `streams[0].scheduler: "basic_wait" is none of in_order, round_robin, weighted_random`,
		`{"streams":[{"pools":["default"],"scheduler":{"type":"basic"}}]}`:                   "streams[0].scheduler: must be of type string, not object",
		`{"streams":[{"pools":["default"],"weights":[1]}]}`:                                  `streams[0].weights: are for scheduler "weighted_random" only`,
		`{"streams":[{"pools":["default"],"scheduler":"weighted_random","weights":[1,2]}]}`:  "streams[0].weights: has 2 numbers for 1 pools",
		`{"streams":[{"pools":["default"],"scheduler":"weighted_random","weights":[0]}]}`:    "streams[0].weights[0]: must be from 1 to 1000000",
		`{"streams":[{"pools":["default"],"scheduler":"weighted_random","weights":[null]}]}`: "streams[0].weights[0]: must not be null",
		`{"streams":[{"pools":["default"],"lock_thread":"yes"}]}`:                            "streams[0].lock_thread: must be of type boolean, not string",
		`{"streams":[{"pools":["default"],"cores":0}]}`:                                      "streams[0].cores: must be of type list, not number",
		`{"streams":[{"pools":["default"],"cores":[-1]}]}`:                                   "streams[0].cores[0]: -1 is no number of a core, or is named twice",
		`{"streams":[{"pools":["default"],"cores":[0,0]}]}`:                                  "streams[0].cores[1]: 0 is no number of a core, or is named twice",
		`{"streams":[{"pools":["default"],"cores":[5000]}]}`:                                 "streams[0].cores[0]: 5000 is no number of a core, or is named twice",
		`{"streams":[{"pools":["default"],"cpubind":1}]}`:                                    "streams[0].cpubind: no such key",
		`{"streams":[{"pools":["default"],"scheduler":"other"}]}`:                            `streams[0].scheduler: "other" stands for a scheduler that only the program has: leave it out, and call SetScheduler`,
	} {
		s, err := Load([]byte(in))
		if err == nil {
			t.Errorf("%s: accepted", in)
			closeSet(t, s)
			continue
		}
		if got := err.Error(); got != "pool: configuration: "+want || !errors.Is(err, ErrConfig) {
			t.Errorf("%s\n gives %s\n want  pool: configuration: %s", in, got, want)
		}
	}
}

// TestHostile has configurations of which the errors must be short all the same, and which must be
// refused before they harm the process.
func TestHostile(t *testing.T) {
	const n = 1 << 17
	long := strings.Repeat("9", n)
	for what, in := range map[string]string{
		"a long number":            `{"pools":[{"queue":` + long + `}]}`,
		"a long weight":            `{"streams":[{"pools":["default"],"weights":[` + long + `]}]}`,
		"a long policy":            `{"pools":[{"policy":"` + long + `"}]}`,
		"a long name":              `{"pools":[{"name":"` + long + `"}]}`,
		"a long reference":         `{"default_pool":"` + long + `"}`,
		"a long reference at all":  `{"streams":[{"pools":["` + long + `"]}]}`,
		"a long key":               `{"` + long + `":1}`,
		"many lists":               `{"pools":` + strings.Repeat("[", n),
		"many closed lists":        `{"pools":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`,
		"more threads than may be": `{"streams":[` + strings.Repeat(`{"pools":["default"],"lock_thread":true},`, 10_000) + `{"pools":["default"]}]}`,
		"no UTF-8":                 "{\"pools\":[{\"name\":\"\xff\xfe\"}]}",
		"a name that is no word":   `{"pools":[{"name":"\u202e\u0000"}]}`,
	} {
		s, err := Load([]byte(in))
		if err == nil {
			t.Errorf("%s: accepted", what)
			closeSet(t, s)
			continue
		}
		if len(err.Error()) > 400 || !errors.Is(err, ErrConfig) {
			t.Errorf("%s: an error of %d bytes: %.400s", what, len(err.Error()), err)
		}
	}
}

// TestThreads checks how many streams may have threads, also when they are added one by one.
func TestThreads(t *testing.T) {
	c := Config{Streams: make([]StreamConfig, 1025)}
	for i := range c.Streams {
		c.Streams[i] = StreamConfig{Pools: []string{"default"}, LockThread: true}
	}
	refused(c.Validate())(t, `pool: configuration: streams[1024]: more than 1024 streams have a thread of their own`, ErrConfig)
	c.Streams[7].LockThread = false
	try.Works(c.Validate())(t)
}

// TestManyPools checks that a large configuration takes no more than a moment: the effort is not
// the square of its size.
func TestManyPools(t *testing.T) {
	const n = 20_000
	c := Config{Pools: make([]PoolConfig, n), Streams: []StreamConfig{{Pools: make([]string, n)}}}
	for i := range c.Pools {
		c.Streams[0].Pools[i] = fmt.Sprint("pool-", i)
	}
	try.Works(c.Validate())(t)
	newSet(t, c)
}

// TestUnmarshal checks that a configuration within another one is read as strictly as by
// ParseConfig.
func TestUnmarshal(t *testing.T) {
	var own struct {
		Address string
		Pools   Config
		Extra   PoolConfig
		Stream  StreamConfig
	}
	try.OK(t, json.Unmarshal([]byte(`{"address":"x","pools":{"pools":[{"name":"a"}]},"extra":{"name":"b","workers":3},"stream":{"pools":["a"]}}`), &own))
	s := newSet(t, own.Pools)
	try.Equal(t, try.Get(s.AddPool(own.Extra))(t).Config().Workers, 3)
	try.Works(s.AddStream(own.Stream))(t)
	for in, want := range map[string]string{
		`{"pools":{"pool":[]}}`:                        "pool: configuration: pool: no such key",
		`{"pools":{"pools":[{"workers":1,"size":1}]}}`: "pool: configuration: pools[0].size: no such key",
		`{"extra":{"size":1}}`:                         "pool: configuration: size: no such key",
		`{"stream":{"pools":[1]}}`:                     "pool: configuration: pools[0]: must be of type string, not number",
	} {
		if err := json.Unmarshal([]byte(in), &own); err == nil || err.Error() != want || !errors.Is(err, ErrConfig) {
			t.Errorf("%s gives %v, want %s", in, err, want)
		}
	}
}

// TestWarnings has the layouts in which units may wait without end, and those like them in
// which they do not.
//
// Promise (Package pool): Layouts in which units may wait without end are reported.
func TestWarnings(t *testing.T) {
	for in, want := range map[string]string{
		`{"pools":[{"name":"a"},{"name":"b","workers":"none"}]}`:                                                                     `[pools[1]: pool "b" has no workers and no stream: its units never run]`,
		`{"pools":[{"name":"a"},{"name":"b"}],"streams":[{"name":"s","pools":["a","b"]},{"pools":["a"]}]}`:                           `[pools[1]: pool "b" is never the first of a stream: its units wait while the pools before it have units]`,
		`{"pools":[{"name":"a"},{"name":"b"}],"streams":[{"name":"s","pools":["a","b"],"scheduler":"round_robin"},{"pools":["b"]}]}`: `[pools[0]: pool "a" is served by stream "s" only, which serves other pools too: a unit of theirs that blocks holds it up]`,
		`{"pools":[{"name":"a"}],"streams":[{"name":"s","pools":["a"],"cores":[1]},{"name":"t","pools":["a"],"cores":[1]}]}`:         `[streams[1].cores: streams "s" and "t" have core 1 only: one waits while the other computes]`,
		`{"pools":[{"name":"a"},{"name":"b"}],"streams":[{"name":"s","pools":["a","b"]}]}`:                                           `[pools[0]: pool "a" is served by stream "s" only, which serves other pools too: a unit of theirs that blocks holds it up pools[1]: pool "b" is never the first of a stream: its units wait while the pools before it have units]`,
		`{}`: `[]`,
		`{"pools":[{"name":"a","workers":1},{"name":"b","workers":1}],"streams":[{"pools":["a","b"]}]}`:  `[]`,
		`{"pools":[{"name":"a"},{"name":"b"}],"streams":[{"pools":["a","b"]},{"pools":["b","a"]}]}`:      `[]`,
		`{"pools":[{"name":"a"}],"streams":[{"pools":["a"],"cores":[1,2]},{"pools":["a"],"cores":[1]}]}`: `[]`,
		`{"pools":[{"name":"a","policy":"inline"}]}`:                                                     `[]`,
	} {
		c, err := ParseConfig([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		warnings, err := c.Validate()
		if got := fmt.Sprint(warnings); err != nil || got != want {
			t.Errorf("%s\n gives %s, %v\n want  %s", in, got, err, want)
		}
	}
	if _, err := (Config{DefaultPool: "x"}).Validate(); !errors.Is(err, ErrConfig) || !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v", err)
	}
}

// TestConfigUnchanged checks that a configuration is not changed by a set that is made of it.
func TestConfigUnchanged(t *testing.T) {
	c := Config{Pools: []PoolConfig{{}}, Streams: []StreamConfig{{Pools: []string{"pool-0"}, Scheduler: ScheduleWeighted}}}
	newSet(t, c)
	if c.Pools[0] != (PoolConfig{}) || c.Streams[0].Name != "" || c.Streams[0].Weights != nil {
		t.Errorf("changed to %+v", c)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"pools":[{"name":"a","workers":"unbounded","queue":3,"when_full":"wait"}],"streams":[{"pools":["a"],"weights":[1]}],"default_pool":"a"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			try.Fails(err)(t, ErrConfig)
			return
		}
		if full, err := c.complete(); err == nil {
			if again, err := full.complete(); err != nil || !reflect.DeepEqual(full, again) {
				t.Errorf("%+v became %+v, %v", full, again, err)
			}
		}
	})
}
