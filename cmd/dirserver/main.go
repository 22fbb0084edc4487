// SPDX-License-Identifier: Apache-2.0

// Command dirserver serves a node's directory as a daemon.
//
//	dirserver [--socket PATH] [--listen URL]... [--config FILE]
//	dirserver --bind HOST:PORT --join HOST:PORT,... --key-file FILE ...
//
// Every setting can be given as a flag, in the environment (ROCL_SOCKET, ROCL_BIND, ROCL_LABEL,
// ROCL_LOG_LEVEL and so on) or in a TOML file, in this order of precedence. SIGHUP makes it read
// the keys of the cluster again. SIGTERM and SIGINT end it cleanly.
//
// Exit codes: 0 ended by a signal, 1 failed, 2 wrong usage or settings, 3 another daemon serves the
// node, 4 failed for a reason that may pass.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/cmd/dirserver/internal/source"
	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/internal/manual"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/loglevel"
	"github.com/rocl-go/rocl/internal/logqueue"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/internal/version"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

func main() {
	ignoreSignals()
	debug.SetTraceback("crash") // a crash ends with SIGABRT: its exit code would be that of wrong usage
	ctx, stop := interrupt.Context(context.Background())
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// misuse marks an error as wrong usage of the command.
type misuse struct{ error }

func (m misuse) Unwrap() error { return m.error }

// wrong marks err as wrong usage.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return misuse{err}
}

// run runs the command line and returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	var show bool
	var file string
	cmd := &cobra.Command{
		Use:   "dirserver",
		Short: "Serve the directory of this node",
		Long: "Serve the directory of this node; with --bind as a member of a cluster, whose programs find each other's resources.\n" +
			"Each flag may be given in the environment (--key-file as ROCL_KEY_FILE) or in the --config file instead.",
		Example: "  dirserver\n" +
			"  dirserver --bind 10.0.0.7:7946 --join 10.0.0.7:7946,10.0.0.8:7946 --key-file cluster.key",
		Version:       version.String(),
		Args:          func(cmd *cobra.Command, args []string) error { return wrong(usage.Nothing(cmd, args)) },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetVersionTemplate("dirserver {{.Version}}\n")
	f := cmd.Flags()
	f.String("socket", "", "Unix socket of the node's directory (default "+directory.DefaultSocket()+")")
	f.StringSlice("listen", nil, "URL to serve at as well, unix:PATH or tcp://HOST:PORT of the loopback interface; may be repeated")
	f.String("bind", "", "HOST:PORT at which the node is a member of a cluster")
	f.StringSlice("join", nil, "HOST:PORT of members to join, srv:NAME of SRV records, or exec:COMMAND that prints HOST:PORT; may be repeated")
	f.String("cluster", "", "name of the cluster: members of other clusters are ignored")
	f.String("key-file", "", "file with the cluster's keys, one a line: the first seals all that nodes say to each other. A path, $CREDENTIALS_DIRECTORY/NAME or fd:N")
	f.String("tls-cert", "", "PEM file with a certificate for TLS between nodes, in place of one made from the key")
	f.String("tls-key", "", "PEM file with its key")
	f.String("tls-ca", "", "PEM file with the authorities whose certificates are accepted")
	f.StringArray("label", nil, "NAME=VALUE by which programs find this node (rocl.kind=node); may be repeated")
	f.String("group", "", "IP:PORT of a multicast group or a broadcast address, to find members and to search by")
	f.String("search", "", "`strategy` of a search that asks all members: auto, unicast, broadcast or tree (default auto)")
	f.String("poll", "", "for how long a processor is kept busy waiting for an answer, such as 50us; 0: not at all (default 0)")
	f.String("http", "", "IP:PORT, localhost:PORT, :PORT or unix:PATH for the page, /metrics, /healthz and /readyz; without IP of the loopback interface")
	f.StringSlice("metrics-label", nil, "attribute of resources that is a label of their metrics, which every process that reaches --http can read; may be repeated")
	f.String("metrics-series", "", "most series about programs in /metrics; 0: programs are not asked (default 10000)")
	f.String("log-level", "", "debug, info, warn or error (default info)")
	f.BoolP("verbose", "v", false, "log at level debug, as --log-level debug does")
	f.String("log-format", "", "text or json (default: text on a terminal, else json)")
	f.String("image", "", "whether contexts may read the directory in place, in memory that it takes for that: on or off (default on)")
	f.String("tpvm", "", "virtual machine whose tasks may start programs here, as the user that runs dirserver (default: none)")
	f.StringVar(&file, "config", os.Getenv("ROCL_CONFIG"), "TOML file with these settings")
	f.BoolVar(&show, "print-config", false, "print the settings and where each comes from, and end")
	for flag, words := range map[string][]cobra.Completion{
		"search": {"auto", "unicast", "broadcast", "tree"}, "image": {"on", "off"}, "log-level": {"debug", "info", "warn", "error"}, "log-format": {"text", "json"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return misuse{usage.FlagError(nil, err)} })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := settings(cmd, file)
		if err != nil {
			return misuse{err}
		}
		if show {
			s.print(out)
			return nil
		}
		return serve(cmd.Context(), s, errOut)
	}
	manual.Add(cmd, args)
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	err := cmd.ExecuteContext(ctx)
	return report(err, errOut)
}

// The exit codes. A supervisor starts the daemon again after codeFailed and codePassing, and not
// after the others, whose reason lasts until an operator acts.
const (
	codeFailed  = 1 // none of the following
	codeMisuse  = 2 // wrong usage or settings
	codeServed  = 3 // another daemon serves the node
	codePassing = 4 // the reason may pass by itself
)

// passing are the errors of the system that may pass by themselves.
var passing = []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL, syscall.EAGAIN, syscall.EDQUOT, syscall.EMFILE, syscall.ENETDOWN, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ENOSPC}

// report prints the error with which the daemon ends, and returns the exit code.
func report(err error, errOut io.Writer) int {
	if err == nil {
		return 0
	}
	var m misuse
	text, advice, code := usage.Text(err), "", codeFailed
	switch {
	case errors.As(err, &m):
		advice, code = "Try 'dirserver --help'.", codeMisuse
	case errors.Is(err, cluster.ErrConfig):
		code = codeMisuse
	case errors.Is(err, directory.ErrSilent):
		text, advice, code = display.Error(err), "A program that serves the node gives way to a dirserver when it runs: let that process go on (kill -CONT), or end it.", codePassing
	case errors.Is(err, directory.ErrInUse):
		advice, code = "Another dirserver is running there; stop it, or choose another --socket.", codeServed
	case sockerr.Is(err, syscall.EADDRINUSE):
		advice, code = "Another process listens there; stop it, or choose another address.", codePassing
	case slices.ContainsFunc(passing, func(e error) bool { return sockerr.Is(err, e) }):
		code = codePassing
	}
	fmt.Fprintf(errOut, "dirserver: %s\n", text)
	if advice != "" {
		fmt.Fprintln(errOut, advice)
	}
	return code
}

// serve runs the daemon with the settings s until ctx ends or another server has taken the node's
// files.
func serve(ctx context.Context, s *config, errOut io.Writer) error {
	// The log's reader may stop reading; the daemon must not stop.
	ctl := &control{config: s, levels: loglevel.New(s.level), recent: new(recent)}
	logs := logqueue.New(s.logger(errOut, ctl))
	defer func() {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		logs.Drain(ended)
	}()
	log := logs.Logger()
	again := make(chan os.Signal, 1) // before anything exists that an unhandled signal would leave behind
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	w := &watched{name: s.cluster.value, joins: s.joins(), log: log, begun: time.Now()}
	opts := []directory.Option{
		directory.AsDaemon(), directory.Also(s.paths...), directory.WithLogger(log), directory.WithLabels(s.labels), directory.WithControl(ctl.do),
	}
	if s.image.value == "off" {
		opts = append(opts, directory.WithoutIndex())
	}
	var member *cluster.Membership
	if s.bind.value != "" {
		member = cluster.NewMembership(s.cluster.value, s.member(), log)
		w.cluster, w.missing = member.Cluster, member.Missing
		opts = append(opts, member.Option())
	}
	client := newClient(s.socket.value, log)
	defer client.Close()
	opts = append(opts, directory.WithSummary(summarize(client)))
	srv, err := directory.Listen(s.socket.value, opts...)
	if err != nil {
		return err
	}
	w.server = srv
	if s.httpAt != "" && s.series > 0 {
		w.programs = newPrograms(source.New(client), srv, s.names, s.series)
	}
	if s.httpAt != "" { // opened first, so that health shows the start and the end too
		w.gate = web.NewGate(s.socket.value)
		defer w.openPage(client)()
		end, err := w.open(s.httpAt)
		if err != nil {
			srv.Close()
			return err
		}
		defer end()
	}
	for _, u := range s.urls {
		at, err := srv.ListenTCP(u)
		if err != nil {
			srv.Close()
			return err
		}
		log.Info("serving", "url", at+"?node="+s.socket.value+".node")
	}
	endPod := func() {}
	if s.tpvm.value != "" {
		endPod = servePod(s.tpvm.value, s.socket.value, log)
		defer endPod()
	}
	w.serving.Store(true)
	log.Info("serving", "socket", s.socket.value, "also", s.paths, "node", w.node(), "version", version.String())
	notify(log, "READY=1")
	var beat <-chan time.Time
	if d := watchdog(); d > 0 {
		t := time.NewTicker(d / 2)
		defer t.Stop()
		beat = t.C
	}
	for {
		select {
		case <-beat:
			srv.Database().Len() // the daemon is alive only if the database answers
			notify(log, "WATCHDOG=1")
			continue
		case <-again:
			rekey(log, member, s.keyFile.value)
			continue
		case <-srv.Displaced():
			// Cause: the files at the path were deleted, and a second server was started. Remedy:
			// restart the programs of the first node.
			return fmt.Errorf("serving %s: %w: the files there were removed while this one ran", s.socket.value, directory.ErrInUse)
		case <-ctx.Done():
		}
		break
	}
	w.ending.Store(true)
	notify(log, "STOPPING=1")
	log.Info("stopping", "contexts", srv.Stats().Contexts)
	endPod()       // while the directory still serves
	client.Close() // likewise
	return srv.Close()
}

// rekey reads the cluster's keys again, and logs the result.
func rekey(log *slog.Logger, m *cluster.Membership, file string) {
	if file == "" {
		log.Info("keys not read again: there is no --key-file", "changed", false)
		return
	}
	if n, err := m.Rekey(); err != nil {
		// Cause: SIGHUP came; `err` says why. Remedy: correct the key file.
		log.Error("keys not changed: the file cannot be used", "changed", false, "err", err)
	} else {
		log.Info("keys read again", "changed", true, "file", file, "keys", n)
	}
}

// logger returns a logger to w and to ctl.recent, with the levels of ctl. Without a format in the
// settings it writes text to a terminal and JSON elsewhere.
func (s *config) logger(w io.Writer, ctl *control) *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withUnits} // ctl.levels decides
	text := s.format.value == "text"
	if s.format.value == "" {
		f, ok := w.(*os.File)
		text = ok && term.IsTerminal(int(f.Fd()))
	}
	both := io.MultiWriter(ctl.recent, w) // w may fail
	var h slog.Handler = slog.NewJSONHandler(display.JSONLines(both), opts)
	if text {
		h = slog.NewTextHandler(display.Text(both), opts)
	}
	return slog.New(ctl.levels.Handler(h))
}

// withUnits returns an attribute with a duration as text: JSON would have a number of nanoseconds.
func withUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// notify sends a state to systemd, if systemd has started this process with Type=notify
// (sd_notify(3)).
func notify(log *slog.Logger, state string) {
	if err := tellSystemd(state); err != nil {
		// Cause: `NOTIFY_SOCKET` cannot be written. Remedy: check `Type=notify` and
		// `NotifyAccess=`.
		log.Warn("telling systemd", "state", state, "err", err)
	}
}
