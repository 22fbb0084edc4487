// SPDX-License-Identifier: Apache-2.0

package context

import (
	"fmt"
	"os"

	"github.com/rocl-go/rocl/directory"
)

// membership returns the options of the server of the node's directory, should this context come to serve it, and
// whether the server would be a member of a cluster.
func (cfg *config) membership() (opts []directory.Option, isMember bool, err error) {
	if cfg.member == nil {
		if bind := os.Getenv("ROCL_BIND"); bind != "" {
			opts = append(opts, directory.WithMembership(unlinked(bind).begin))
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

// An unlinked is the value of ROCL_BIND in a program without WithMember.
type unlinked string

// begin refuses to serve a node that the environment wants in a cluster. A node that contexts use already is served,
// and answers as one that cannot reach its cluster.
func (u unlinked) begin(s *directory.Server, late bool) (func(bool), error) {
	err := fmt.Errorf("%w: ROCL_BIND is %q, and the program does not pass rocl.WithMember(cluster.Environment())", directory.ErrMember, string(u))
	if !late {
		return nil, err
	}
	s.Attach(directory.Unreachable(err))
	return func(bool) {}, nil
}
