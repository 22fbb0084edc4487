// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the dashboard and the alerts for Prometheus.
package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(t *testing.T, file string) string { return string(try.Get(os.ReadFile(file))(t)) }

// metrics returns the labels of each metric, as the lists have them. Tests of dirserver and
// promrocl compare these with the metrics. A histogram has the names of its series.
func metrics(t *testing.T) map[string][]string {
	all := map[string][]string{}
	add := func(name, labels string, more ...string) {
		of := append(strings.FieldsFunc(labels, func(r rune) bool { return r == ',' }), more...)
		for _, suffix := range []string{"", "_count", "_sum", "_bucket"} {
			all[name+suffix] = append(slices.Clone(of), "le", "job", "instance")
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^(rocl_[a-z_]+)(?:\{([a-z,]+)\})? `).FindAllStringSubmatch(read(t, "../cmd/dirserver/testdata/metrics.txt"), -1) {
		add(m[1], m[2])
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t(rocl_[a-z_]+)(?:\{([a-z,]+)\})? `).FindAllStringSubmatch(read(t, "../promrocl/promrocl.go"), -1) {
		add(m[1], m[2], "program", "pid")
	}
	for _, m := range regexp.MustCompile(`(?m)^//\t(rocl_rpc_[a-z_]+) `).FindAllStringSubmatch(read(t, "../rpc/promrpc/promrpc.go"), -1) {
		add(m[1], "call")
	}
	return all
}

// A panel is what a test needs of a panel of the dashboard.
type panel struct {
	Title   string
	Targets []struct{ Expr, LegendFormat string }
}

func panels(t *testing.T) (all []panel) {
	var d struct{ Panels []panel }
	try.OK(t, json.Unmarshal([]byte(read(t, "dashboard.json")), &d))
	return d.Panels
}

var selector = regexp.MustCompile(`\b(rocl_[a-z_]+)(?:\{([^{}]*)\})?`)

// check checks that the metrics of an expression exist and have the labels that it names.
func check(t *testing.T, where, expr string, known map[string][]string) {
	t.Helper()
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		labels, ok := known[m[1]]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, m[1])
			continue
		}
		for _, l := range regexp.MustCompile(`([a-z_]+) *=~?"`).FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(labels, l[1]) {
				t.Errorf("%s: %s has no label %s", where, m[1], l[1])
			}
		}
	}
}

// The dashboard, the alerts and their test name metrics and labels that exist.
//
// Promise (Commands): The dashboard and the alerts name metrics that exist.
func TestNames(t *testing.T) {
	known := metrics(t)
	if len(known) < 4*60 {
		t.Fatalf("%d names of metrics are found", len(known))
	}
	targets := 0
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			targets++
			check(t, p.Title, target.Expr, known)
		}
	}
	alerts, test := read(t, "alerts.yml"), read(t, "alerts_test.yml")
	exprs := regexp.MustCompile(`(?m)- alert: (\w+)\n +expr: (.*)$`).FindAllStringSubmatch(alerts, -1)
	for _, m := range exprs {
		check(t, m[1], m[2], known)
	}
	series := regexp.MustCompile(`series: '(rocl_.*)', values`).FindAllStringSubmatch(test, -1)
	for _, m := range series {
		check(t, "alerts_test.yml", m[1], known)
	}
	if targets < 30 || len(exprs) < 20 || len(series) < 2 {
		t.Errorf("%d expressions of the dashboard, %d alerts and %d series of the test are found", targets, len(exprs), len(series))
	}
}

// promtool accepts the rules and the expressions of the dashboard. TestAlerts of cmd/dirserver has
// a run in which each alert fires.
func TestRules(t *testing.T) {
	tool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("ROCL_PROMTOOL") == "must" {
			t.Fatal(err)
		}
		t.Skip("promtool is not installed: Debian's package prometheus has it")
	}
	rules := "groups:\n- name: dashboard\n  rules:\n"
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			rules += fmt.Sprintf("  - {record: a:b, expr: %q}\n", strings.NewReplacer("$__rate_interval", "5m").Replace(target.Expr))
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	try.OK(t, os.WriteFile(file, []byte(rules), 0o600))
	for _, args := range [][]string{{"check", "rules", "--lint=none", "alerts.yml", file}, {"test", "rules", "alerts_test.yml"}} {
		if out, err := exec.CommandContext(eventually.Context(t), tool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
