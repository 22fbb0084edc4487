// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/internal/os/loopback"
)

const (
	tcpScheme = "tcp://"
	// unixScheme is the beginning of URLs that are easily taken for the path of a socket.
	unixScheme = "unix:"
)

// DefaultSocket returns the path of the socket of the node's directory: $ROCL_SOCKET, or else a
// socket in the user's runtime directory.
func DefaultSocket() string {
	if p := os.Getenv("ROCL_SOCKET"); p != "" {
		return p
	}
	return defaultPath()
}

// defaultPath returns the path of the socket if $ROCL_SOCKET is not set.
func defaultPath() string {
	d, _ := defaultFolder()
	return filepath.Join(d, "directory.sock")
}

// defaultFolder returns the folder of the default path, and the environment variable that names the
// folder around it.
func defaultFolder() (dir, variable string) {
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "rocl"), "XDG_RUNTIME_DIR"
	}
	return filepath.Join(os.TempDir(), userFolder()), tempVariable
}

// checkDefault returns an error if the default path is not absolute: it would mean another node in
// each working directory.
func checkDefault() error {
	if d, variable := defaultFolder(); !filepath.IsAbs(d) {
		// Cause: `XDG_RUNTIME_DIR` or `TMPDIR` is no absolute path. Remedy: correct or unset it.
		return fmt.Errorf("directory: the default path of the directory: %s=%q is not an absolute path; set ROCL_SOCKET to use another path", variable, os.Getenv(variable))
	}
	return nil
}

// filePath returns path in a form that every call takes for a file system path. Package net takes a
// leading @ for one of the kernel's abstract names, which any user may take.
func filePath(path string) string {
	if strings.HasPrefix(path, "@") {
		return "./" + path
	}
	return path
}

// CheckSocket returns an error if path cannot be the path of a directory's socket: it is too long
// for the kernel, or a URL. It does not look at files.
func CheckSocket(path string) error {
	if IsTCP(path) || strings.HasPrefix(path, unixScheme) {
		return fmt.Errorf("directory: %q is a URL, where the path of a socket is wanted", path)
	}
	if path = filePath(path); len(path) > maxPath {
		// Cause: the kernel limits socket paths. Remedy: use a shorter one.
		return fmt.Errorf("directory: socket path has %d bytes, at most %d: %s", len(path), maxPath, path)
	}
	return nil
}

// IsTCP reports whether a directory's address is that of a TCP port rather than the path of a Unix
// socket.
func IsTCP(addr string) bool { return strings.HasPrefix(addr, tcpScheme) }

// CheckListenTCP returns an error if addr is no valid address for [Listener.OpenTCP].
func CheckListenTCP(addr string) error {
	at, ok := strings.CutPrefix(addr, tcpScheme)
	host, port, err := net.SplitHostPort(at)
	if _, bad := strconv.ParseUint(port, 10, 16); !ok || err != nil || bad != nil {
		return fmt.Errorf("directory: %q is not tcp://HOST:PORT", addr)
	}
	if !loopback.IsHost(host) {
		return fmt.Errorf("directory: serving at %s: only loopback addresses can be served", addr)
	}
	return nil
}

// CheckDial returns an error if addr is no valid address for [Dial]. It does not look for the
// socket or for a file that addr names.
func CheckDial(addr string) error {
	if !IsTCP(addr) {
		return CheckSocket(addr)
	}
	_, _, err := parseTCP(addr)
	return err
}

// parseTCP returns the parts of tcp://HOST:PORT?node=FILE.
func parseTCP(addr string) (at, file string, err error) {
	u, err := url.Parse(addr)
	if err == nil {
		_, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	if err != nil {
		return "", "", fmt.Errorf("directory: %q is not tcp://HOST:PORT?node=FILE", addr)
	}
	if file = u.Query().Get("node"); file == "" {
		return "", "", fmt.Errorf("directory: %q does not name the file with the node's key: tcp://HOST:PORT?node=FILE", addr)
	}
	return u.Host, file, nil
}
