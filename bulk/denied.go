// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"log/slog"
	"syscall"

	"github.com/rocl-go/rocl"
)

// WithLogger sets the logger of an endpoint. The endpoint logs one line, at level warn, for each
// reason for which the system does not let it read plain memory of other processes of the node
// where that lies. The line says what would help. Nothing is logged by default.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if c.log = l; l == nil {
			c.log = slog.New(slog.DiscardHandler)
		}
	}
}

// helpFor returns what would let this process read the memory of another one.
func helpFor(err error) string {
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "set kernel.yama.ptrace_scope to 0, run the processes as one user, or give them CAP_SYS_PTRACE; registered buffers need none of this"
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, errors.ErrUnsupported):
		return "allow the system call process_vm_readv, for example in the seccomp profile of the container; registered buffers do not need it"
	default:
		return "run the processes in one PID namespace; registered buffers do not need it"
	}
}

// logDenied logs why plain memory of a resource's process cannot be read, once for each reason. It
// returns err.
func (ep *Endpoint) logDenied(of rocl.GID, err error) error {
	if !errors.Is(err, errDenied) {
		return err
	}
	help := helpFor(err)
	if _, isLogged := ep.helped.LoadOrStore(help, true); !isLogged {
		// Cause: ptrace or a seccomp profile forbids it, or the PID namespaces differ. Remedy: see
		// `help`, or use `Context.Buffer`.
		ep.cfg.log.Warn("bulk: plain memory of another process cannot be read where it lies, and is copied once more", "endpoint", ep.ID(), "peer", of.Context(), "err", err, "help", help)
	}
	return err
}
