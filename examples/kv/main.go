// SPDX-License-Identifier: Apache-2.0

// Command kv is a key-value store, built on calls of package rpc. "kv serve 3" offers three
// providers in one process, each with a third of the keys of that process. Start it any number of
// times, on any node. Then
//
//	kv put NAME VALUE    stores a value
//	kv get NAME          prints it
//	kv list              prints all names, provider by provider, in order
//
// The provider of a key is chosen by rendezvous hashing among those that are found. So the end of a
// provider moves only its own keys.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"

	"github.com/cespare/xxhash/v2"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// service is the pattern of all providers.
var service = rocl.Match{"service": "kv"}

// An entry holds the arguments of put.
type entry struct {
	Key   string
	Value []byte
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := run(ctx, c, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, c *rocl.Context, args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 1 {
			return fmt.Errorf("kv serve: %q is not a number of providers", args[1])
		}
		return serve(ctx, c, n)
	}
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		return err
	}
	defer client.Close()
	switch {
	case len(args) == 3 && args[0] == "put":
		return put(ctx, c, client, args[1], []byte(args[2]))
	case len(args) == 2 && args[0] == "get":
		value, err := get(ctx, c, client, args[1])
		if err == nil {
			fmt.Printf("%s\n", value)
		}
		return err
	case len(args) == 1 && args[0] == "list":
		return list(ctx, c, client)
	}
	return errors.New("usage: kv serve N | kv put NAME VALUE | kv get NAME | kv list")
}

// A store holds the keys and values of one provider.
type store struct {
	mu     sync.RWMutex
	values map[string][]byte
}

func (s *store) put(_ context.Context, e entry) (struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[e.Key] = e.Value
	return struct{}{}, nil
}

func (s *store) get(_ context.Context, key string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	value, ok := s.values[key]
	if !ok {
		return nil, fmt.Errorf("key %q: %w", key, fs.ErrNotExist) // the caller can match it with errors.Is too
	}
	return value, nil
}

// list yields the keys in order.
func (s *store) list(context.Context, struct{}) iter.Seq2[string, error] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := slices.Sorted(maps.Keys(s.values))
	return func(yield func(string, error) bool) {
		for _, k := range keys {
			if !yield(k, nil) {
				return
			}
		}
	}
}

// serve offers n providers until ctx ends.
func serve(ctx context.Context, c *rocl.Context, n int) error {
	for i := range n {
		st := &store{values: map[string][]byte{}}
		calls := func(s *rpc.Server) error {
			return errors.Join(
				rpc.Register(s, "put", st.put, rpc.Inline()), // it waits for nothing but the lock
				rpc.Register(s, "get", st.get, rpc.Inline()),
				rpc.RegisterStream(s, "list", st.list),
			)
		}
		s, err := rpc.NewServer(ctx, c, rocl.Attrs{"service": "kv", "provider": strconv.Itoa(i)}, rpc.WithCalls(calls))
		if err != nil {
			return err
		}
		defer s.Close(context.WithoutCancel(ctx))
	}
	fmt.Printf("%d providers serve\n", n)
	<-ctx.Done()
	return nil
}

// providers returns all providers, in the same order for all callers.
func providers(ctx context.Context, c *rocl.Context) ([]rocl.GID, error) {
	var ids []rocl.GID
	for f, err := range c.FindAll(ctx, service) {
		if err != nil {
			return nil, err
		}
		ids = append(ids, f.ID)
	}
	if len(ids) == 0 {
		return nil, rocl.ErrNotFound
	}
	slices.SortFunc(ids, rocl.GID.Compare)
	return ids, nil
}

// providerOf returns the provider of a key: the one whose hash together with the key is the
// highest.
func providerOf(ctx context.Context, c *rocl.Context, key string) (rocl.GID, error) {
	ids, err := providers(ctx, c)
	if err != nil {
		return rocl.GID{}, err
	}
	weight := func(id rocl.GID) uint64 {
		text, _ := id.MarshalText()
		return xxhash.Sum64(binary.LittleEndian.AppendUint64(text, xxhash.Sum64String(key)))
	}
	return slices.MaxFunc(ids, func(a, b rocl.GID) int {
		if weight(a) < weight(b) {
			return -1
		}
		return 1
	}), nil
}

func put(ctx context.Context, c *rocl.Context, client *rpc.Client, key string, value []byte) error {
	id, err := providerOf(ctx, c, key)
	if err == nil {
		_, err = rpc.Call[entry, struct{}](ctx, client, id, "put", entry{key, value})
	}
	return err
}

func get(ctx context.Context, c *rocl.Context, client *rpc.Client, key string) ([]byte, error) {
	id, err := providerOf(ctx, c, key)
	if err != nil {
		return nil, err
	}
	return rpc.Call[string, []byte](ctx, client, id, "get", key)
}

// list prints the keys of each provider.
func list(ctx context.Context, c *rocl.Context, client *rpc.Client) error {
	ids, err := providers(ctx, c)
	if err != nil {
		return err
	}
	for _, id := range ids {
		fmt.Println(id)
		for key, err := range rpc.Stream[struct{}, string](ctx, client, id, "list", struct{}{}) {
			if err != nil {
				return err
			}
			fmt.Println("  " + key)
		}
	}
	return nil
}
