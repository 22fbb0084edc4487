// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Protocol: Contexts
//
// A context registers itself, serial 0, before others can send to it or it sends: `rocl.kind` =
// `context`, `rocl.pid` = the process number in decimal, `rocl.program` = its executable, and
// `rocl.addr` = its addresses, one attribute each, the best first, such as `tcp://127.0.0.1:4711`,
// `tls://…`, `shm://…`. A context that only dials has no address. To send to a resource, look up
// all attributes of its context (the identifier with serial 0), since addresses repeat, dial one
// that both can use, and shake hands. Contexts of one node use TCP over loopback, and shared
// memory.
//
// A node is a resource too: its context number and serial are 0. It has `rocl.kind` = `node`,
// `rocl.node`, `rocl.host`, `rocl.os`, `rocl.arch`, `rocl.cores`, `rocl.memory`, `rocl.version`,
// `rocl.addr` in a cluster, and labels.

// AttrPID is the attribute of a context that has the number of its process.
const AttrPID = "rocl.pid"

// AttrProgram is the attribute of a context that has the name of its executable.
const AttrProgram = "rocl.program"

// Program returns the name of this process's executable, without its folder. It is "" if the kernel
// does not tell.
func Program() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(path), " (deleted)")
}

// Ports are the addresses at which a context listens, and the resource that tells other contexts of
// them. The options of the context and the terms of its directory decide what they are. Open is
// called first and once, then Follow once. The other methods may be called concurrently.
type Ports struct {
	cfg  *Config
	self resource.GID
	dir  *directory.Client
	disp listener
	// changed receives when the directory's terms have changed.
	changed <-chan struct{}

	// Open uses the following fields, and later Follow alone.

	terms      directory.Terms // that were applied last
	registered []string        // addresses that the directory has
	// listening has the keys of the addresses at which the context listens, and of those whose
	// transport the machine lacks.
	listening map[string]bool
	lacking   string           // the address for other nodes at which the context cannot listen, or ""
	sealer    subsys.Transport // seals links to other nodes; nil if they are not sealed
	secrets   keySet           // of the sealer if it is made from keys, else nil
	sealed    [][]byte         // the keys from which secrets was made
}

// listener is the part of the dispatcher that Ports use.
type listener interface {
	Listen(t subsys.Transport, at string) error
	Addrs() []string
	Reconsider()
}

// NewPorts returns the ports of the context self, whose directory is dir. changed receives when the
// directory's terms have changed.
func NewPorts(cfg *Config, self resource.GID, dir *directory.Client, changed <-chan struct{}) *Ports {
	return &Ports{cfg: cfg, self: self, dir: dir, changed: changed, listening: map[string]bool{}}
}

// Open opens the ports by disp, and registers the resource that stands for the context (section 4.1
// of the paper).
func (p *Ports) Open(ctx context.Context, disp listener) error {
	p.disp = disp
	p.terms = p.dir.Terms()
	if err := p.checkTerms(&p.terms); err != nil {
		return err
	}
	if err := p.seal(&p.terms); err != nil {
		return err
	}
	if err := p.cfg.checkListen(&p.terms, p.sealer); err != nil {
		return err
	}
	if err := p.listen(p.cfg.listenAddrs(&p.terms, p.sealer)); err != nil {
		return err
	}
	p.registered = p.Addrs()
	l, err := describe(p.registered)
	if err == nil {
		_, err = p.dir.Register(ctx, p.self, l)
	}
	return err
}

// describe returns the attributes of the resource that stands for a context, which is reached at
// the addresses addrs.
func describe(addrs []string) (*resource.List, error) {
	l := new(resource.List)
	err := errors.Join(l.AddString(directory.AttrKind, "context"), l.AddString(AttrPID, strconv.Itoa(os.Getpid())))
	if program := Program(); program != "" {
		err = errors.Join(err, l.AddString(AttrProgram, program))
	}
	for _, a := range addrs {
		err = errors.Join(err, l.AddString(directory.AttrAddr, a))
	}
	return l, err
}
