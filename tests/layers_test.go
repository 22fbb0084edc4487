// SPDX-License-Identifier: Apache-2.0

// Package tests has the tests that need several packages or processes.
package tests

import (
	"go/parser"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

const module = "github.com/rocl-go/rocl"

// layers gives the height of each package: a package may import only lower ones. Transports have
// the same height and do not know each other.
var layers = map[string]int{
	"internal/os/netsource": -2, "internal/os/cgroup": -2, "internal/os/clock": -2, "internal/os/secretfile": 0, "internal/os/loopback": -2, "internal/os/sockerr": -2, "internal/os/peercred": -2, "internal/testkit/eventually": -2, "internal/testkit/logged": -2, "internal/callqueue": -2, "internal/testkit/posix": -3, "internal/testkit/subprocess": -2, "internal/programs": -2, "internal/flowfile": -2, "internal/lock": -2, "internal/planted": -2, "pool": -2,
	"internal/os/memfd": -1, "internal/ratelog": -1, "internal/os/futex": -1, "internal/testkit/freeaddr": -1, "internal/testkit/ownnode": -2, "internal/testkit/nice": -1, "internal/display": -1, "internal/sentinel": -1, "internal/connlimit": -1, "internal/logqueue": -1, "internal/loglevel": -1,
	"directory/internal/index": 1,
	"resource":                 0, "buffers": 0, "codec": 0, "internal/version": 0, "internal/testkit/vectors": -2, "internal/testkit/sshd": 0, "internal/histogram": 0, "internal/testkit/try": -2, "internal/testkit/short": -3,
	"subsys":        1,
	"subsys/stream": 2, "subsys/internal/harness": 2, "internal/testkit/relay": 2,
	"subsys/inproc": 3, "subsys/simnet": 3, "subsys/tcp": 3, "subsys/tls": 3, "subsys/shm": 3,
	"dispatch/internal/wire": 2, "dispatch/internal/life": 3, "dispatch/internal/session": 3, "dispatch/internal/credit": 3, "dispatch/internal/spin": 0, "dispatch/internal/list": 0, "dispatch/internal/progress": 2,
	"dispatch":                    4,
	"directory/internal/database": 2, "directory/internal/wire": 3,
	"directory/strategy":        1,
	"directory/internal/search": 4,
	"directory/internal/node":   4,
	"directory":                 5,
	"directory/internal/mux":    5,
	"directory/cluster":         6,
	"context":                   7,
	"":                          8,
	"rocltest":                  9,
	"internal/observe":          9,
	"netrocl":                   9,
	"ofi":                       3, "ofi/internal/fabric": -1,
	"live":                   9,
	"rpc":                    10,
	"work":                   9,
	"group":                  9,
	"rpc/otelrpc":            11,
	"otelrocl":               10,
	"rpc/promrpc":            11,
	"promrocl":               9,
	"codec/protobuf":         1,
	"tpvm/pack":              9,
	"tpvm":                   10,
	"bulk":                   9,
	"election":               9,
	"dataflow/internal/plan": 9, "dataflow/internal/frames": 9, "dataflow/internal/sched": 10, "dataflow": 11, "dataflow/promflow": 12, "dataflow/otelflow": 12,
}

// publicOnly lists packages that use the library only by its public packages, as a user's program
// does. Of the module they may import the listed packages and themselves, and nothing else. The
// same holds for packages in folders below them.
var publicOnly = map[string][]string{
	"pool":     {},
	"tpvm":     {"", "codec", "directory/cluster", "internal/programs", "tpvm"}, // programs imports nothing of the module
	"rpc":      {"", "bulk", "codec", "internal/os/clock", "pool", "rpc"},       // clock imports nothing of the module
	"bulk":     {"", "codec"},
	"election": {""},
	"promrocl": {""},
	"live":     {"", "live"},
	"work":     {"", "codec"},
	"group":    {""},
	"dataflow": {"", "codec", "dataflow", "internal/flowfile"}, // flowfile imports nothing of the module
}

// mayImport reports whether publicOnly lets a package import another package of the module.
func mayImport(pkg, dep string) bool {
	for root, allowed := range publicOnly {
		if pkg != root && !strings.HasPrefix(pkg, root+"/") {
			continue
		}
		for _, a := range allowed {
			if dep == a || a == root && strings.HasPrefix(dep, root+"/") {
				return true
			}
		}
		return false
	}
	return true
}

// height returns the height of a package. Packages that layers does not list (cmd, examples, tests)
// are on top.
func height(pkg string) int {
	if h, ok := layers[pkg]; ok {
		return h
	}
	return 100
}

// thirdParty lists the modules outside the standard library that a package may use. Commands and
// tests may use any.
var thirdParty = map[string][]string{
	"buffers":  {"golang.org/x/sys"},
	"tpvm":     {"golang.org/x/sys"},
	"dataflow": {"golang.org/x/sys"},
	"bulk":     {"golang.org/x/sys"},
	"rpc":      {"github.com/cespare/xxhash/v2", "golang.org/x/sys"},
	"live":     {"github.com/cespare/xxhash/v2"},

	"codec/protobuf":    {"google.golang.org/protobuf"},
	"rpc/promrpc":       {"github.com/prometheus/client_golang"},
	"promrocl":          {"github.com/prometheus/client_golang"},
	"dataflow/promflow": {"github.com/prometheus/client_golang"},
	"ofi":               {"golang.org/x/sys"}, "ofi/internal/fabric": {"github.com/ebitengine/purego", "golang.org/x/sys"},
	"otelrocl":          {"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace"},
	"rpc/otelrpc":       {"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace"},
	"dataflow/otelflow": {"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/trace"},

	"pool":              {"golang.org/x/sys"},
	"internal/programs": {"golang.org/x/sys"},
	"codec":             {"github.com/fxamacker/cbor/v2"},
	"subsys":            {"golang.org/x/sys"},
	"dispatch":          {"github.com/cespare/xxhash/v2"},
	"directory":         {"golang.org/x/sys"}, "directory/internal/wire": {"golang.org/x/sys"}, "directory/internal/node": {"golang.org/x/sys"},

	"subsys/stream": {"golang.org/x/sys"},
	"subsys/tcp":    {"golang.org/x/sys"},
	"subsys/shm":    {"golang.org/x/sys"},

	"internal/os/clock":     {"golang.org/x/sys"},
	"internal/os/futex":     {"golang.org/x/sys"},
	"internal/testkit/nice": {"golang.org/x/sys"}, "internal/testkit/posix": {"golang.org/x/sys"}, "internal/os/sockerr": {"golang.org/x/sys"},
	"internal/os/peercred":     {"golang.org/x/sys"},
	"internal/os/memfd":        {"golang.org/x/sys"},
	"internal/testkit/ownnode": {"go.uber.org/goleak"},

	"directory/internal/index": {"github.com/dchest/siphash"},

	"directory/internal/search": {"github.com/bits-and-blooms/bloom/v3", "github.com/cespare/xxhash/v2"},
	"directory/internal/mux":    {"github.com/cespare/xxhash/v2", "github.com/hashicorp/memberlist", "golang.org/x/net", "golang.org/x/sys"},
	"directory/cluster":         {"github.com/hashicorp/memberlist"},
}

func TestMayImport(t *testing.T) {
	for _, pkg := range []string{"tpvm", "tpvm/pack", "tpvm/internal/x"} {
		for _, dep := range []string{"dispatch", "directory/internal/index", "context", "internal/lock", "resource", "rocltest"} {
			if mayImport(pkg, dep) {
				t.Errorf("%s may import %s", pkg, dep)
			}
		}
		if !mayImport(pkg, "") || !mayImport(pkg, "tpvm/pack") {
			t.Errorf("%s may not import the face", pkg)
		}
	}
	if !mayImport("tpvmother", "context") || !mayImport("netrocl", "dispatch") {
		t.Error("packages outside publicOnly may import less than their layer lets them")
	}
}

// Promise (Source tree): Packages import one way.
func TestLayers(t *testing.T) {
	for _, f := range try.Get(tree.Go("..", parser.ImportsOnly, tree.IsCode))(t) {
		pkg := f.Folder()
		if pkg == "." {
			pkg = ""
		}
		for _, im := range f.Imports {
			p, _ := strconv.Unquote(im.Path.Value)
			switch {
			case p == module || strings.HasPrefix(p, module+"/"):
				dep := strings.TrimPrefix(strings.TrimPrefix(p, module), "/")
				if !mayImport(pkg, dep) {
					t.Errorf("%s imports %s: package %s stands on the public face alone", f.Path, p, pkg)
				}
				if pkg == "context" && strings.HasPrefix(dep, "subsys/") {
					continue // the default transports are named here, visibly
				}
				if height(pkg) < 100 && height(dep) >= height(pkg) {
					t.Errorf("%s imports %s, which is not below it", f.Path, p)
				}
			case strings.Contains(strings.Split(p, "/")[0], ".") && height(pkg) < 100 && pkg != "rocltest":
				if !slices.ContainsFunc(thirdParty[pkg], func(m string) bool { return p == m || strings.HasPrefix(p, m+"/") }) {
					t.Errorf("%s imports %s, which package %q may not", f.Path, p, pkg)
				}
			}
		}
	}
}
