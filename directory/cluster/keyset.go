// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net"
	"sync"

	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/subsys/tls"
)

// A keyset puts the keys of the cluster to use: for gossip, for the streams between members and for
// the datagrams of the mux.
type keyset struct {
	*core
	gossip *gossip
	// setCerts changes the keys of which the certificates of the streams are made. If it fails, it
	// changes nothing. It is nil without a key, or with Config.Credentials. tls sets it.
	setCerts func(secrets ...[]byte) error

	mu sync.Mutex // held by set: two concurrent calls take effect in one order everywhere
}

// set replaces the keys. The first seals. What can fail comes first, so an error leaves the keys as
// they were. The keyring refuses only keys of a wrong length, and derived keys have the right one.
func (k *keyset) set(of [][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.gossip.canRekey(of)
	if err == nil && k.setCerts != nil {
		err = k.setCerts(streamKeys(of)...)
	}
	if err == nil {
		err = k.gossip.rekey(of)
	}
	if err != nil {
		return fmt.Errorf("cluster: changing keys: %w", err)
	}
	k.mux.SetKeys(of)
	return nil
}

// derive returns the key for one purpose that comes of a key of the cluster.
func derive(key []byte, purpose string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// LinkKey returns the key that contexts of the cluster's nodes prove to each other to have. If the
// cluster has no key, the name alone gives it.
func LinkKey(name string, key []byte) [32]byte { return [32]byte(derive(key, "rocl link "+name)) }

// gossipKey derives memberlist's key from a key of the cluster.
func gossipKey(key []byte) []byte { return derive(key, "rocl gossip") }

// streamProto names the streams between members in TLS (ALPN).
const streamProto = "rocl-dir/1"

// streamKeys derives the secrets that only members have. Contexts are given other keys (LinkKey),
// so a context cannot pass for a member.
func streamKeys(of [][]byte) (all [][]byte) {
	for _, k := range of {
		all = append(all, derive(k, "rocl stream"))
	}
	return all
}

// tls returns how the streams between members are sealed: not at all without credentials and
// keys.
func (k *keyset) tls() (seal mux.TLS, err error) {
	cred := k.cfg.Credentials
	if cred == nil {
		if len(k.cfg.Keys) == 0 {
			return mux.TLS{}, nil
		}
		certs, err := tls.FromSecrets(k.cfg.Name, streamKeys(k.cfg.Keys)...)
		if err != nil {
			return mux.TLS{}, err
		}
		k.setCerts, cred = certs.Set, certs
	}
	return mux.TLS{
		Client: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			return tls.Client(ctx, nc, cred, streamProto, k.log)
		},
		Server: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			return tls.Server(ctx, nc, cred, streamProto, k.log)
		},
	}, nil
}
