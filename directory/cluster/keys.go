package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"
)

// Bounds of a file of keys: of the bytes of one, and of their number, which is
// what a handshake between contexts takes.
const (
	minKey   = 16
	mostKeys = 8
	mostFile = 4 << 10
)

// ReadKeys reads the keys of a cluster, one a line, without the white space
// around them: the first seals, all open. The file must be its owner's alone.
func ReadKeys(file string) ([][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	if p := fi.Mode().Perm(); p&0o077 != 0 {
		return nil, fmt.Errorf("%w: the cluster's key %s can be read by others (mode %v); it must be 0600: %w", ErrConfig, file, p, fs.ErrPermission)
	}
	b, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	if len(b) > mostFile {
		return nil, fmt.Errorf("%w: the cluster's key in %s: at most %d bytes", ErrConfig, file, mostFile)
	}
	var keys [][]byte
	n := 0
	for line := range bytes.Lines(b) {
		n++
		key := bytes.TrimSpace(line)
		switch {
		case len(key) == 0:
			continue
		case len(key) < minKey: // also a key of any bytes that has a line's end in it
			return nil, fmt.Errorf("%w: the cluster's key in %s, line %d, has %d bytes; it must have at least %d, as text on one line", ErrConfig, file, n, len(key), minKey)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > mostKeys {
		return nil, fmt.Errorf("%w: the cluster's key: %s has %d; it must have 1 to %d", ErrConfig, file, len(keys), mostKeys)
	}
	return keys, nil
}

// linkKeys are what contexts are given.
func (m *Membership) linkKeys(of [][]byte) (all [][]byte) {
	if len(of) == 0 {
		of = [][]byte{nil}
	}
	for _, key := range of {
		k := LinkKey(m.name, key)
		all = append(all, k[:])
	}
	return all
}

// Reload reads the keys again and puts them to use, everywhere: gossip, searches
// and streams between members, and links between contexts, who are told. An
// error leaves things as they were. Members do it by themselves soon after the
// file has changed.
func (m *Membership) Reload() error {
	if m.member.KeyFile == "" {
		return nil
	}
	m.rekey.Lock()
	defer m.rekey.Unlock()
	keys, err := ReadKeys(m.member.KeyFile)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock() // it stays the member it is
	if m.now == nil || slices.EqualFunc(keys, m.keys, bytes.Equal) {
		return nil
	}
	if err := m.now.SetKeys(keys...); err != nil {
		return err
	}
	var links [][32]byte
	for _, k := range keys {
		links = append(links, LinkKey(m.name, k))
	}
	m.server.SetLinkKeys(links...)
	m.keys = keys
	m.log.Info("the cluster's keys have changed", "keys", len(keys))
	return nil
}

// look is how often the file is looked at.
const look = time.Second

// keepKeys follows the file of keys. What has changed is read when it looks the
// same for the second time: it may be being written.
func (m *Membership) keepKeys(life context.Context) {
	var seen, used os.FileInfo
	said := ""
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		now, err := os.Stat(m.member.KeyFile)
		if err == nil && sameFile(now, seen) && !sameFile(now, used) {
			if err = m.Reload(); err == nil {
				used, said = now, ""
			}
		}
		seen = now
		if err != nil && err.Error() != said {
			said = err.Error()
			m.log.Warn("cluster: the keys stay as they were", "err", err)
		}
		select {
		case <-tick.C:
		case <-life.Done():
			return
		}
	}
}

func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}
