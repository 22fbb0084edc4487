// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

// A finding is the result of a check, or a part of it.
type finding struct {
	Check  string `json:"check"`
	State  string `json:"state"`            // "ok", "found", or "unknown" if the check could not be made
	Text   string `json:"text"`             // what was seen; of a finding, the cause
	Remedy string `json:"remedy,omitempty"` // of a finding: what to do
	Code   int    `json:"code,omitempty"`   // of a finding: its exit code
}

// A check looks at one thing in an exam, and reports by one or several findings.
type check struct {
	name string
	code int    // the exit code of its findings
	what string // what a finding says, for --help
	run  func(e *exam, r *reporter)
}

// A reporter collects the findings of one check.
type reporter struct {
	*check
	all []finding
}

// ok reports that the check found nothing. The text says what is there.
func (r *reporter) ok(format string, args ...any) {
	r.all = append(r.all, finding{Check: r.name, State: "ok", Text: fmt.Sprintf(format, args...)})
}

// unknown reports that the check, or a part of it, could not be made. The text says why.
func (r *reporter) unknown(format string, args ...any) {
	r.all = append(r.all, finding{Check: r.name, State: "unknown", Text: fmt.Sprintf(format, args...)})
}

// mostFindings limits the findings of one check.
const mostFindings = 16

// found reports what is wrong. remedy says what to do.
func (r *reporter) found(remedy, format string, args ...any) {
	if len(r.all) == mostFindings {
		return
	}
	r.all = append(r.all, finding{Check: r.name, State: "found", Text: fmt.Sprintf(format, args...), Remedy: remedy, Code: r.code})
}

// diagnose runs all checks on an exam. code is that of the most serious finding, 0 if nothing was
// found.
func diagnose(e *exam) (all []finding, code int) {
	for i := range checks {
		r := &reporter{check: &checks[i]}
		r.run(e, r)
		if len(r.all) == 0 {
			r.ok("nothing found")
		}
		for j := range r.all { // causes have text of other processes
			f := &r.all[j]
			f.Text, f.Remedy = limited(f.Text), limited(f.Remedy)
			code = cmp.Or(code, f.Code) // the checks are in the order of how serious they are
		}
		all = append(all, r.all...)
	}
	return all, code
}

// limited returns text of other processes so that it is safe to show, and cut if it is very long.
func limited(text string) string {
	const most = 1000
	text = display.Escape(text)
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// A doctorError ends rocl doctor with the code of its most serious finding, which has been printed.
type doctorError struct{ code int }

func (e *doctorError) Error() string { return fmt.Sprintf("doctor: finding %d", e.code) }

func doctorCommand() *cobra.Command {
	var codes strings.Builder
	t := tabwriter.NewWriter(&codes, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(t, "  %d\t%s\t%s\n", c.code, c.name, c.what)
	}
	t.Flush()
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check this node and its cluster, and print what is wrong and what to do",
		Long: "Check this node and its cluster, and print what is wrong and what to do. It changes nothing, and takes at most about eight times --timeout.\n" +
			"Run it as the user of the node's programs, on each node that is in doubt. A check that cannot be made says so.\n" +
			"Exit code 0 if nothing is found, else that of the most serious finding, the first in this list:\n" + codes.String(),
		Args: func(cmd *cobra.Command, args []string) error { return usage.Nothing(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := Flags(cmd)
			e := examine(cmd.Context(), g)
			if err := context.Cause(cmd.Context()); err != nil {
				return err
			}
			all, code := diagnose(e)
			if err := printFindings(cmd.OutOrStdout(), g, all); err != nil {
				return err
			}
			if code != 0 {
				return &doctorError{code}
			}
			return nil
		},
	}
}

// printFindings prints a line for each finding, and the remedy below it.
func printFindings(w io.Writer, g Globals, all []finding) error {
	for i := range all {
		f := &all[i]
		if g.JSON {
			if err := Print(w, f); err != nil {
				return err
			}
			continue
		}
		mark := map[string]string{"ok": "ok", "found": "FOUND", "unknown": "?"}[f.State]
		if _, err := fmt.Fprintf(w, "%-5s  %-10s  %s\n", mark, f.Check, f.Text); err != nil {
			return err
		}
		if f.Remedy != "" {
			if _, err := fmt.Fprintf(w, "%-5s  %-10s  → %s\n", "", "", f.Remedy); err != nil {
				return err
			}
		}
	}
	return nil
}
