// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"net"

	"github.com/rocl-go/rocl/directory/internal/node"
)

// An Identity is the number of a node, with the means to give its contexts numbers that are never
// given twice.
type Identity = node.Identity

// NewIdentity makes an identity that is stored nowhere, for nodes in memory.
func NewIdentity() *Identity { return node.NewIdentity() }

// DefaultSocket returns the path of the socket of the node's directory: $ROCL_SOCKET, or else a
// socket in the user's runtime directory.
func DefaultSocket() string { return node.DefaultSocket() }

// IsTCP reports whether a directory's address is that of a TCP port rather than the path of a Unix
// socket.
func IsTCP(addr string) bool { return node.IsTCP(addr) }

// CheckSocket returns an error if path cannot be the path of a directory's socket: it is too long
// for the kernel, or a URL. It does not look at files.
func CheckSocket(path string) error { return node.CheckSocket(path) }

// CheckListenTCP returns an error if addr is no valid address for [Server.ListenTCP].
func CheckListenTCP(addr string) error { return node.CheckListenTCP(addr) }

// CheckDial returns an error if addr is no valid address for [DialSocket]. It does not look for the
// socket or for a file that addr names.
func CheckDial(addr string) error { return node.CheckDial(addr) }

// A Dialer connects to a node's directory.
type Dialer func(ctx context.Context) (net.Conn, error)

// DialSocket returns a Dialer to the directory at a Unix socket. The Dialer fails with
// ErrNoDirectory if no process serves there, and with ErrUntrusted if a process of another user
// does. A path that starts with tcp:// is an address of [Server.ListenTCP], followed by ?node= and
// the file with the node's key.
func DialSocket(path string) Dialer {
	return func(ctx context.Context) (net.Conn, error) { return node.Dial(ctx, path) }
}
