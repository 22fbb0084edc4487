// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/spf13/cobra"
)

const (
	profileTime = 5 * time.Second
	// mostDebug limits the contexts whose snapshots are in an archive.
	mostDebug = 1000
)

func debugCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Write an archive about this node, for a bug report",
		Long: "Write an archive (tar.gz) about this node, for a bug report. It takes some " + profileTime.String() + " more than rocl doctor.\n" +
			"It has the report of rocl doctor, versions, settings and the last lines of the log of dirserver, the members of the cluster,\n" +
			"attributes of contexts, snapshots of all contexts, which are taken twice, routes, and goroutines and profiles of dirserver.\n" +
			"It has no keys, no tokens and no contents of messages. It does have names of machines and programs, addresses, paths, labels,\n" +
			"and short forms of attributes: read it before you send it to somebody.",
		Args: func(cmd *cobra.Command, args []string) error { return usage.Nothing(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				file = "rocl-debug-" + time.Now().Format("20060102-150405") + ".tar.gz"
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // never a file that is there
			if err != nil {
				return err
			}
			names, err := writeDebug(cmd.Context(), Flags(cmd), f, func(step string) {
				if isTerminal(cmd.ErrOrStderr()) {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s…\n", step)
				}
			})
			if e := f.Close(); err == nil {
				err = e
			}
			if err != nil {
				os.Remove(file)
				return err
			}
			if g := Flags(cmd); g.JSON {
				return Print(cmd.OutOrStdout(), map[string]any{"file": file, "parts": names})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s has %s.\nRead it before you send it: tar -xzf %s. It names machines, programs, addresses, paths and labels.\n", file, strings.Join(names, ", "), file)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, which must not exist (default rocl-debug-TIME.tar.gz)")
	return cmd
}

// An archive is a tar file that is being written.
type archive struct {
	w     *tar.Writer
	now   time.Time
	names []string
	err   error
}

// add adds a part, or in its place the reason why there is none.
func (a *archive) add(name string, b []byte, err error) {
	if err != nil {
		name, b = name+".missing", []byte(text(err)+"\n")
	}
	if a.err == nil {
		a.err = a.w.WriteHeader(&tar.Header{Name: "rocl-debug/" + name, Mode: 0o600, Size: int64(len(b)), ModTime: a.now, Format: tar.FormatPAX})
	}
	if a.err == nil {
		_, a.err = a.w.Write(b)
	}
	a.names = append(a.names, name)
}

// addJSON adds a part that is JSON, with indents.
func (a *archive) addJSON(name string, v any, err error) {
	var b []byte
	if err == nil {
		b, err = json.MarshalIndent(v, "", "  ")
	}
	a.add(name, append(b, '\n'), err)
}

// writeDebug writes the archive to w, and returns the names of its parts. It calls begin with the
// name of each step that may take some time.
func writeDebug(ctx context.Context, g Globals, w io.Writer, begin func(step string)) ([]string, error) {
	z := gzip.NewWriter(w)
	a := &archive{w: tar.NewWriter(z), now: time.Now()}
	begin("checking the node and its cluster")
	e := examine(ctx, g)
	var report bytes.Buffer
	findings, _ := diagnose(e)
	_ = printFindings(&report, Globals{}, findings)
	a.add("doctor.txt", report.Bytes(), nil)
	a.addJSON("versions.json", map[string]string{"rocl": version.String(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH, "kernel": kernel()}, nil)
	a.addJSON("directory.json", e.status, e.statusErr) // with the members of the cluster
	a.addJSON("nodes.json", e.nodes, nil)
	var contexts []foundJSON
	for i := range e.contexts[:min(len(e.contexts), mostDebug)] {
		c := &e.contexts[i]
		contexts = append(contexts, foundJSON{ID: &c.ID, Revision: c.Revision, Attrs: jsonAttrs(&c.Attrs)})
	}
	a.addJSON("contexts.json", contexts, nil)
	if e.statusErr == nil {
		begin("asking the contexts")
		a.snapshots(ctx, g, "snapshots-1.json")
		begin(fmt.Sprintf("asking the directory's process, which is profiled for %v", profileTime))
		a.daemon(ctx, g)
		begin("asking the contexts again")
		a.snapshots(ctx, g, "snapshots-2.json")
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	for _, end := range []func() error{a.w.Close, z.Close} {
		if err := end(); a.err == nil {
			a.err = err
		}
	}
	return a.names, a.err
}

// daemon adds what the directory's process tells of itself.
func (a *archive) daemon(ctx context.Context, g Globals) {
	for _, part := range []struct{ name, do string }{{"config.toml", "config"}, {"log.txt", "log"}} {
		var s string
		err := g.control(ctx, &s, part.do)
		a.add(part.name, []byte(s), err)
	}
	for _, part := range []struct{ name, do string }{{"goroutines.txt", "goroutines"}, {"heap.pprof", "heap"}} {
		var b []byte
		err := g.control(ctx, &b, part.do)
		a.add(part.name, b, err)
	}
	var b []byte
	g.Timeout += profileTime // which the answer takes
	err := g.control(ctx, &b, "profile", profileTime.String())
	a.add("cpu.pprof", b, err)
}

// snapshots adds the snapshots of the node's contexts, with their resources, calls and routes.
func (a *archive) snapshots(ctx context.Context, g Globals, name string) {
	var v *observe.View
	err := g.ask(ctx, func(p *timeoutContext, c *rocl.Context) (err error) {
		v, err = observe.Gather(p.parent, c, false, p.limit) // p may end while it waits for a silent context
		return err
	})
	if v != nil && len(v.Contexts) > mostDebug {
		v.Contexts = v.Contexts[:mostDebug]
	}
	a.addJSON(name, v, err)
}

// kernel returns the version of the kernel.
func kernel() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}
