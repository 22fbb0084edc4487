// SPDX-License-Identifier: Apache-2.0

package context

import (
	"fmt"
	"os"

	"github.com/rocl-go/rocl/directory"
)

// membership returns options for the case that this context serves the node's directory. isMember
// reports whether the server would be a member of a cluster.
func (cfg *config) membership() (opts []directory.Option, isMember bool, err error) {
	if cfg.member == nil {
		if bind := os.Getenv("ROCL_BIND"); bind != "" {
			opts = append(opts, directory.WithMembership(unlinked(bind)))
		}
		return opts, false, nil
	}
	if err := cfg.member.Check(); err != nil {
		return nil, false, err
	}
	if o := cfg.member.Option(cfg.cluster, cfg.certs, cfg.logger); o != nil {
		return []directory.Option{o}, true, nil
	}
	return nil, false, nil
}

// unlinked returns a membership that fails, because the environment wants the node in a cluster, as
// ROCL_BIND says, and the program cannot join one. If contexts use the node already (late), it lets
// the server serve, but answer like a member that cannot reach its cluster.
func unlinked(bind string) func(s *directory.Server, late bool) (func(bool), error) {
	return func(s *directory.Server, late bool) (func(bool), error) {
		err := fmt.Errorf("%w: ROCL_BIND is %q, and the program does not pass rocl.WithMember(cluster.Environment())", directory.ErrMember, bind)
		if !late {
			return nil, err
		}
		s.Attach(directory.Unreachable(err))
		return func(bool) {}, nil
	}
}
