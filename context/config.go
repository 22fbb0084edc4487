// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A Config has what the options of rocl.Open set, each under the name of its option.
type Config struct {
	Socket       string // "": the default
	NoIndex      bool
	JoinOnly     bool
	Dial         func(context.Context) (net.Conn, error) // nil: over the socket
	Transports   []subsys.Transport                      // best first
	Listen       []string
	Rules        []Rule
	Poll         dispatch.Polling
	Mailbox      int   // bytes; 0: the default
	Memory       int64 // bytes; 0: the default
	Linger       time.Duration
	GiveUp       time.Duration // 0: the default
	Cluster      string        // "": the directory's
	Member       Member        // nil: not given
	Certificates directory.CertificateFiles
	Logger       *slog.Logger
	Trace        func(context.Context) dispatch.Trace                  // may be nil
	Undelivered  func(dispatch.Undelivered)                            // may be nil
	Summary      func(context.Context, []resource.GID) ([]byte, error) // of the node, while this context serves its directory; set by rocl.Open
}

// WithoutIndex returns an option of rocl.Open: the context asks the directory over the socket, even
// if it could read the node's index in shared memory. It is for measuring.
func WithoutIndex() func(*Config) { return func(c *Config) { c.NoIndex = true } }

// WithDirectory returns an option of rocl.Open: the context connects to the directory with dial
// instead of a socket. It implies JoinOnly. Tests use it to stay in memory.
func WithDirectory(dial func(context.Context) (net.Conn, error)) func(*Config) {
	return func(c *Config) { c.Dial = dial }
}

// Defaults returns the configuration of a context without options.
func Defaults() Config {
	return Config{
		Transports: transports(),
		Linger:     5 * time.Second,
		Logger:     slog.New(slog.DiscardHandler),
	}
}

// A Member describes how a node takes part in a cluster. See rocl.Member.
type Member interface {
	Check() error
	Paths() directory.CertificateFiles
	Option(name string, certs directory.CertificateFiles, log *slog.Logger) directory.Option
}

// Check checks the options that do not depend on the directory. It returns the rules.
func (cfg *Config) Check() (*Rules, error) {
	if slices.Contains(cfg.Transports, nil) {
		return nil, errors.New("a transport of WithTransports is nil")
	}
	if err := cfg.Poll.Check(); err != nil {
		return nil, err
	}
	return newRules(cfg.Rules, cfg.Transports)
}

// environment takes the cluster's name and the certificates from the environment if no option set
// them.
func (cfg *Config) environment() {
	if cfg.Cluster == "" {
		cfg.Cluster = os.Getenv("ROCL_CLUSTER")
	}
	if !cfg.Certificates.Given() {
		cfg.Certificates = directory.CertificateFiles{Cert: os.Getenv("ROCL_TLS_CERT"), Key: os.Getenv("ROCL_TLS_KEY"), CA: os.Getenv("ROCL_TLS_CA")}
	}
}

// path returns the address of the node's directory, unless the program dials it.
func (cfg *Config) path() string {
	if cfg.Socket != "" {
		return cfg.Socket
	}
	return directory.DefaultSocket()
}

// Folder returns the folder of the directory's socket, or "" if the directory has none.
func (cfg *Config) Folder() string {
	if cfg.Dial != nil || directory.IsTCP(cfg.path()) {
		return ""
	}
	return filepath.Dir(cfg.path())
}

// Join returns a client of the directory that the options name. The client signals termsChanged
// when the directory's terms have changed.
func (cfg *Config) Join(ctx context.Context, termsChanged chan struct{}) (*directory.Client, error) {
	opts := []directory.ClientOption{directory.WithClientLogger(cfg.Logger), directory.WithTerms(func(directory.Terms) {
		select {
		case termsChanged <- struct{}{}:
		default: // a signal is pending already
		}
	})}
	if cfg.NoIndex {
		opts = append(opts, directory.WithoutClientIndex())
	}
	if !cfg.Certificates.Given() && cfg.Member != nil {
		cfg.Certificates = cfg.Member.Paths()
	}
	if cfg.Dial == nil {
		cfg.environment()
	}
	if err := cfg.Certificates.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCertificates, err)
	}
	if cfg.Dial != nil {
		return directory.Join(ctx, cfg.Dial, opts...)
	}
	path := cfg.path()
	if cfg.JoinOnly {
		return directory.Join(ctx, directory.DialSocket(path), opts...)
	}
	serve, isMember, err := cfg.membership()
	if err != nil {
		return nil, err
	}
	serve = append(serve, directory.WithSummary(cfg.Summary))
	if isMember {
		opts = append(opts, directory.AsMember())
	}
	return directory.JoinNode(ctx, path, cfg.Logger, serve, opts...)
}
