// SPDX-License-Identifier: Apache-2.0

// Package flow has the commands of rocl for programs of package dataflow: they start the groups of
// a graph, draw it, and show what its edges carry.
//
//	flow.go    the commands
//	run.go     starting the groups and waiting for them
//	group.go   the process of one group, here or on another host
//	lines.go   the output of the groups
//	graph.go   drawing a graph
//	svg.go     where the boxes of a drawing stand
//	status.go  what the edges of a run carry
package flow

import (
	"strconv"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/flowfile"
	"github.com/spf13/cobra"
)

// Commands returns the command flow.
func Commands() []*cobra.Command {
	flow := &cobra.Command{
		Use:   "flow",
		Short: "Run, draw and watch programs of package dataflow",
		Long: "Run a program of package dataflow, which builds a graph, with a process for each group of the graph.\n" +
			"Draw its graph, and show what its edges carry.",
	}
	flow.AddCommand(runCommand(), dryRunCommand(), graphCommand(), statusCommand())
	return []*cobra.Command{flow}
}

// atLeastProgram fails unless a program is named.
func atLeastProgram(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage.Errorf("%s needs a program: %s", cmd.Name(), cmd.UseLine())
	}
	return nil
}

// seconds is the value of a flag that is a duration, or a number of seconds.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }
func (s *seconds) Type() string   { return "time" }

// Set implements pflag.Value.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.ParseUint(text, 10, 31); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d <= 0 {
		return usage.Errorf("it is no number of seconds or duration above zero, such as 90 or 1m30s")
	}
	*s = seconds(d)
	return nil
}

func runCommand() *cobra.Command {
	var l launcher
	var file string
	cmd := &cobra.Command{
		Use:   "run [flags] -f FILE PROGRAM [argument...]",
		Short: "Run a program of package dataflow with a process for each group",
		Long: "Let the program build its graph, and compare its groups with those of the configuration FILE, which is FastFlow's.\n" +
			"Then start the program once for each group: here, or by ssh on the host of the group's endpoint, where the program must\n" +
			"have the same path. Wait until all have ended.\n" +
			"The first group that fails ends the run: each other group has 5 s to end with the same error. Groups that go on are\n" +
			"ended then, and all groups by an interrupt and -t: by SIGTERM, and after 5 s by SIGKILL.\n" +
			"The output of a group is not shown, except for the last lines of the first group that fails; -v and -V show it.\n" +
			"TPVM_SSH replaces the command ssh, with its options.\n" +
			"Exit code 0 if all groups have ended well, 130 if it was interrupted, and 1 otherwise.",
		Example: "  rocl flow run -V -f flow.json ./wordcount text.txt\n  rocl flow run -n -f flow.json ./wordcount text.txt",
		Args:    atLeastProgram,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usage.Errorf("-f is missing: it names the configuration file")
			}
			f, err := flowfile.Read(file)
			if err != nil {
				return err
			}
			return l.launch(cmd, f, args)
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.StringVarP(&file, "file", "f", "", "configuration `file`")
	fl.StringSliceVarP(&l.shown, "verbose", "v", nil, "show the output of these `groups`, with commas between them")
	fl.BoolVarP(&l.showAll, "verbose-all", "V", false, "show the output of all groups")
	fl.StringVarP(&l.protocol, "protocol", "p", "", "`protocol`, in place of the one in the file: TCP, SHM, ...")
	fl.BoolVarP(&l.onlyPrint, "dry-run", "n", false, "print the commands, and start nothing")
	fl.VarP(&l.limit, "limit", "t", "end the groups after this many seconds, or a `time` such as 1m30s")
	fl.BoolVarP(&l.keepGoing, "keep-going", "k", false, "do not end the other groups when one fails")
	fl.StringVarP(&l.ssh.Config, "ssh-config", "F", "", "`file` with ports, users and keys of hosts, as for ssh -F")
	return cmd
}
