// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/resource"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// setting is a value and where it comes from: a flag, the environment, the file or the default.
type setting struct{ value, origin string }

// config is the configuration of the daemon. The fields behind the settings are computed from them.
type config struct {
	socket, listen, logLevel, format setting
	bind, join, cluster, keyFile     setting
	tlsCert, tlsKey, tlsCA           setting
	group, search, poll, http        setting
	label, image, tpvm               setting
	metricsLabel, metricsSeries      setting

	paths []string // Unix sockets of listen
	urls  []string // TCP addresses of listen
	level slog.Level

	pollFor  time.Duration
	strategy strategy.Strategy
	httpAt   string
	names    []string // attributes of metricsLabel
	series   int      // metricsSeries

	given  []string // labels as they were given
	labels directory.Labels
}

// fileConfig is the configuration file. A nil field was not given.
type fileConfig struct {
	Socket    *string   `toml:"socket"`
	Listen    *[]string `toml:"listen"`
	LogLevel  *string   `toml:"log-level"`
	LogFormat *string   `toml:"log-format"`
	Bind      *string   `toml:"bind"`
	Join      *[]string `toml:"join"`
	Cluster   *string   `toml:"cluster"`
	KeyFile   *string   `toml:"key-file"`
	TLSCert   *string   `toml:"tls-cert"`
	TLSKey    *string   `toml:"tls-key"`
	TLSCA     *string   `toml:"tls-ca"`
	Group     *string   `toml:"group"`
	Search    *string   `toml:"search"`
	Poll      *string   `toml:"poll"`
	HTTP      *string   `toml:"http"`
	Label     *[]string `toml:"label"`
	Image     *string   `toml:"image"`
	TPVM      *string   `toml:"tpvm"`

	MetricsLabel  *[]string `toml:"metrics-label"`
	MetricsSeries *string   `toml:"metrics-series"`
}

// settings returns the configuration. A flag precedes the environment, the environment precedes the
// file, and the file precedes the default.
func settings(cmd *cobra.Command, file string) (*config, error) {
	var fc fileConfig
	if err := refuseEmpty(cmd.Flags()); err != nil {
		return nil, err
	}
	if file != "" {
		b, err := readFile(cmd.Context(), file)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration (%s): %w", fileOrigin(cmd), err)
		}
		d := toml.NewDecoder(strings.NewReader(string(b))).DisallowUnknownFields()
		if err := d.Decode(&fc); err != nil {
			return nil, fmt.Errorf("reading the configuration %s: %w", file, withPosition(err))
		}
	}
	list := func(in *[]string) *string {
		if in == nil {
			return nil
		}
		s := strings.Join(*in, ",")
		return &s
	}
	pick := func(flag, env string, inFile *string, def string) setting {
		if fl := cmd.Flags().Lookup(flag); fl.Changed {
			if fl.Value.Type() == "stringSlice" {
				v, _ := cmd.Flags().GetStringSlice(flag)
				return setting{strings.Join(v, ","), "flag --" + flag}
			}
			return setting{fl.Value.String(), "flag --" + flag}
		}
		if v := os.Getenv(env); v != "" {
			return setting{v, "environment " + env}
		}
		if inFile != nil {
			return setting{*inFile, "file " + file}
		}
		return setting{def, "default"}
	}
	c := &config{
		socket:   pick("socket", "ROCL_SOCKET", fc.Socket, directory.DefaultSocket()),
		listen:   pick("listen", "ROCL_LISTEN", list(fc.Listen), ""),
		logLevel: pick("log-level", "ROCL_LOG_LEVEL", fc.LogLevel, "info"),
		format:   pick("log-format", "ROCL_LOG_FORMAT", fc.LogFormat, ""),
		bind:     pick("bind", "ROCL_BIND", fc.Bind, ""),
		join:     pick("join", "ROCL_JOIN", list(fc.Join), ""),
		cluster:  pick("cluster", "ROCL_CLUSTER", fc.Cluster, ""),
		keyFile:  pick("key-file", "ROCL_KEY_FILE", fc.KeyFile, ""),
		tlsCert:  pick("tls-cert", "ROCL_TLS_CERT", fc.TLSCert, ""),
		tlsKey:   pick("tls-key", "ROCL_TLS_KEY", fc.TLSKey, ""),
		tlsCA:    pick("tls-ca", "ROCL_TLS_CA", fc.TLSCA, ""),
		group:    pick("group", "ROCL_GROUP", fc.Group, ""),
		search:   pick("search", "ROCL_SEARCH", fc.Search, "auto"),
		poll:     pick("poll", "ROCL_POLL", fc.Poll, "0"),
		http:     pick("http", "ROCL_HTTP", fc.HTTP, ""),
		image:    pick("image", "ROCL_IMAGE", fc.Image, "on"),
		tpvm:     pick("tpvm", "ROCL_TPVM", fc.TPVM, ""),

		metricsLabel:  pick("metrics-label", "ROCL_METRICS_LABEL", list(fc.MetricsLabel), ""),
		metricsSeries: pick("metrics-series", "ROCL_METRICS_SERIES", fc.MetricsSeries, "10000"),
	}
	if v, _ := cmd.Flags().GetBool("verbose"); v {
		if cmd.Flags().Changed("log-level") && c.logLevel.value != "debug" {
			return nil, fmt.Errorf("--verbose and --log-level %s contradict each other", c.logLevel.value)
		}
		c.logLevel = setting{"debug", "flag --verbose"}
	}
	if err := c.checkCluster(); err != nil {
		return nil, err
	}
	if err := c.checkHTTP(); err != nil {
		return nil, err
	}
	if err := c.checkMetrics(); err != nil {
		return nil, err
	}
	if c.tpvm.value != "" && c.bind.value != "" && c.keyFile.value == "" {
		// Cause: a member needs a key before it starts programs. Remedy: add `--key-file`.
		return nil, fmt.Errorf("--tpvm (%s) without --key-file: every process that reaches the network could start programs here", c.tpvm.origin)
	}
	if err := c.checkLabels(cmd, &fc, file); err != nil {
		return nil, err
	}
	if c.socket.value == "" {
		return nil, fmt.Errorf("the path of the socket (%s) is empty", c.socket.origin)
	}
	if err := directory.CheckSocket(c.socket.value); err != nil {
		return nil, fmt.Errorf("--socket (%s): %w", c.socket.origin, err)
	}
	if err := c.level.UnmarshalText([]byte(c.logLevel.value)); err != nil || strings.ContainsAny(c.logLevel.value, "+-") {
		return nil, fmt.Errorf("log level %q (%s) is not debug, info, warn or error", c.logLevel.value, c.logLevel.origin)
	}
	if f := c.format.value; f != "" && f != "text" && f != "json" {
		return nil, fmt.Errorf("log format %q (%s) is not text or json", f, c.format.origin)
	}
	if v := c.image.value; v != "on" && v != "off" {
		return nil, fmt.Errorf("image %q (%s) is not on or off", v, c.image.origin)
	}
	for _, u := range strings.Split(c.listen.value, ",") {
		if u == "" {
			continue
		}
		if directory.IsTCP(u) {
			if err := directory.CheckListenTCP(u); err != nil {
				return nil, fmt.Errorf("--listen (%s): %w", c.listen.origin, err)
			}
			c.urls = append(c.urls, u)
			continue
		}
		path, ok := strings.CutPrefix(u, "unix:")
		path = strings.TrimPrefix(path, "//")
		if !ok || path == "" {
			return nil, fmt.Errorf("cannot serve at %q (%s): only unix:PATH and tcp://HOST:PORT are known", u, c.listen.origin)
		}
		if err := directory.CheckSocket(path); err != nil {
			return nil, fmt.Errorf("--listen (%s): %w", c.listen.origin, err)
		}
		if path == c.socket.value || slices.Contains(c.paths, path) {
			return nil, fmt.Errorf("%q (%s) is served already", u, c.listen.origin)
		}
		c.paths = append(c.paths, path)
	}
	return c, nil
}

// refuseEmpty refuses flags that are given and empty, for example from a variable that is not set:
// without its key, a member would accept every node. An empty name of the cluster and an empty log
// format are allowed.
func refuseEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		switch v := f.Value.String(); {
		case v != "" && v != "[]", f.Name == "cluster", f.Name == "log-format":
		case err == nil:
			// Cause: the flag is empty, often because a variable is unset. Remedy: set or remove
			// it.
			err = fmt.Errorf("--%s is empty: leave it out, or give it a value", f.Name)
		}
	})
	return err
}

// fileOrigin returns the name of the setting that names the configuration file.
func fileOrigin(cmd *cobra.Command) string {
	if cmd.Flags().Changed("config") {
		return "flag --config"
	}
	return "environment ROCL_CONFIG"
}

// fileMost limits the size of the configuration file.
const fileMost = 1 << 20

// readFile reads a file. If the file is a pipe whose other end does not write, readFile waits until
// ctx ends.
func readFile(ctx context.Context, file string) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		f, err := os.Open(file)
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, fileMost+1))
		if err == nil && len(b) > fileMost {
			err = fmt.Errorf("%s has more than %d bytes", file, fileMost)
		}
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.b, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: interrupted before it ended", file)
	}
}

// defaults are the defaults of settings. They are also allowed without a cluster.
var defaults = map[string]string{"search": "auto", "poll": "0"}

// checkCluster checks the settings of the cluster.
func (c *config) checkCluster() (err error) {
	if c.pollFor, err = time.ParseDuration(c.poll.value); err != nil {
		return fmt.Errorf("poll %q (%s) is not a duration, as 50us", c.poll.value, c.poll.origin)
	}
	if c.bind.value == "" {
		for _, s := range []struct {
			flag string
			setting
		}{{"join", c.join}, {"group", c.group}, {"key-file", c.keyFile}, {"tls-cert", c.tlsCert}, {"tls-key", c.tlsKey}, {"tls-ca", c.tlsCA}, {"search", c.search}, {"poll", c.poll}} {
			if s.value != "" && s.value != defaults[s.flag] {
				// Cause: only members use this setting. Remedy: add `--bind`, or remove it.
				return fmt.Errorf("--%s (%s) without --bind HOST:PORT: the node is not in a cluster", s.flag, s.origin)
			}
		}
		return nil
	}
	if !cluster.IsBind(c.bind.value) {
		return fmt.Errorf("bind address %q (%s) is not HOST:PORT, as 10.0.0.7:7946, eth0:7946, 10.0.0.0/8:7946 or 0.0.0.0:7946", c.bind.value, c.bind.origin)
	}
	if c.strategy, err = strategy.Parse(c.search.value); err != nil {
		return fmt.Errorf("search %q (%s) is not auto, unicast, broadcast or tree", c.search.value, c.search.origin)
	}
	c.search.value = c.strategy.String()
	m := c.member()
	if err := m.Certificates.Check(); err != nil {
		return fmt.Errorf("--tls-cert (%s), --tls-key (%s), --tls-ca (%s): %w", c.tlsCert.origin, c.tlsKey.origin, c.tlsCA.origin, reason(err))
	}
	if m.Certificates.Given() && m.KeyFile == "" {
		// Cause: certificates do not replace the key. Remedy: add `--key-file`.
		return fmt.Errorf("--tls-cert (%s) without --key-file: gossip and searches are sealed by the key, there is no TLS for them", c.tlsCert.origin)
	}
	for _, at := range m.Join {
		if !cluster.IsJoin(at) {
			return fmt.Errorf("member to join %q (%s) is not HOST:PORT, srv:NAME or exec:COMMAND", at, c.join.origin)
		}
	}
	for _, s := range []struct {
		flag string
		setting
		only cluster.Member // the settings that matter for the flag
	}{
		{"group", c.group, cluster.Member{Bind: m.Bind, Group: m.Group}},
		{"search", c.search, cluster.Member{Bind: m.Bind, Group: m.Group, Strategy: m.Strategy}},
		{"poll", c.poll, cluster.Member{Bind: m.Bind, Poll: m.Poll}},
		{"bind", c.bind, m},
	} {
		if err := s.only.Check(); err != nil {
			return fmt.Errorf("--%s (%s): %w", s.flag, s.origin, reason(err))
		}
	}
	if err := cluster.CheckName(c.cluster.value); err != nil {
		return fmt.Errorf("--cluster (%s): %w", c.cluster.origin, reason(err))
	}
	if c.keyFile.value == "" {
		return nil
	}
	if _, err := cluster.ReadKeys(c.keyFile.value); err != nil { // a check only: the keys are read again when they are used
		return fmt.Errorf("--key-file (%s): %w", c.keyFile.origin, reason(err))
	}
	return nil
}

// reason returns an error of package cluster without its prefix, which adds nothing where the
// setting is named.
func reason(err error) error {
	if errors.Is(err, cluster.ErrConfig) {
		return errors.New(strings.TrimPrefix(err.Error(), cluster.ErrConfig.Error()+": "))
	}
	return err
}

// member returns the settings of the node as a member of its cluster.
func (c *config) member() cluster.Member {
	return cluster.Member{
		Bind: c.bind.value, KeyFile: c.keyFile.value, Group: c.group.value, Strategy: c.strategy, Poll: c.pollFor,
		Join:         cluster.Split(c.join.value),
		Certificates: directory.CertificateFiles{Cert: c.tlsCert.value, Key: c.tlsKey.value, CA: c.tlsCA.value},
	}
}

// joins reports whether the settings name other members to meet.
func (c *config) joins() bool {
	return c.bind.value != "" && (c.join.value != "" || c.group.value != "")
}

// checkHTTP checks the address of the page, metrics and health. Without a host the address is on
// the loopback interface, so that only this machine can read them.
func (c *config) checkHTTP() error {
	if c.http.value == "" {
		return nil
	}
	if path, ok := strings.CutPrefix(c.http.value, "unix:"); ok {
		if err := directory.CheckSocket(path); path == "" || err != nil {
			return fmt.Errorf("http address %q (%s) is not unix:PATH: %w", c.http.value, c.http.origin, cmp.Or(err, errors.New("the path is empty")))
		}
		c.httpAt = c.http.value
		return nil
	}
	host, port, err := net.SplitHostPort(c.http.value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if host == "" || host == "localhost" {
		host = "127.0.0.1"
	}
	if _, bad := netip.ParseAddr(host); err != nil || bad != nil {
		return fmt.Errorf("http address %q (%s) is not IP:PORT, localhost:PORT, :PORT or unix:PATH", c.http.value, c.http.origin)
	}
	c.httpAt = net.JoinHostPort(host, port)
	return nil
}

// checkMetrics checks the settings of the metrics of programs.
func (c *config) checkMetrics() error {
	n, err := strconv.ParseUint(c.metricsSeries.value, 10, 31)
	if err != nil {
		return fmt.Errorf("metrics series %q (%s) is not a number from 0 to %d", c.metricsSeries.value, c.metricsSeries.origin, math.MaxInt32)
	}
	c.series = int(n)
	var labels []string
	for _, name := range cluster.Split(c.metricsLabel.value) {
		label := labelOf(name)
		if slices.Contains(labels, label) {
			return fmt.Errorf("metrics label %s (%s) gives the label %s twice", usage.Quote(name), c.metricsLabel.origin, label)
		}
		labels, c.names = append(labels, label), append(c.names, name)
	}
	return nil
}

// checkLabels collects the labels. In the environment, commas separate them. In a flag or the file,
// a comma is part of the value.
func (c *config) checkLabels(cmd *cobra.Command, fc *fileConfig, file string) error {
	var given []string
	c.label.origin = "default"
	switch env := os.Getenv("ROCL_LABEL"); {
	case cmd.Flags().Changed("label"):
		given, _ = cmd.Flags().GetStringArray("label")
		c.label.origin = "flag --label"
	case env != "":
		given, c.label.origin = strings.Split(env, ","), "environment ROCL_LABEL"
	case fc.Label != nil:
		given, c.label.origin = *fc.Label, "file "+file
	}
	c.given = given
	var l resource.List
	for _, a := range given {
		name, value, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("label %s (%s) is not NAME=VALUE", usage.Quote(a), c.label.origin)
		}
		if err := l.AddString(name, value); err != nil {
			return fmt.Errorf("label %s (%s): %w", usage.Quote(a), c.label.origin, err)
		}
	}
	var err error
	if c.labels, err = directory.NewLabels(&l); err != nil {
		return fmt.Errorf("the labels (%s): %s", c.label.origin, strings.TrimPrefix(err.Error(), "directory: labels: "))
	}
	return nil
}

// lists are the settings with several values.
var lists = []string{"listen", "join", "label", "metrics-label"}

// withPosition adds the line and the name of the setting to an error of the decoder.
func withPosition(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		e := &unknown.Errors[0]
		row, _ := e.Position()
		// Cause: the configuration file has an unknown name. Remedy: correct it.
		return fmt.Errorf("line %d: no such setting: %s", row, strings.Join(e.Key(), "."))
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		row, _ := bad.Position()
		if key := strings.Join(bad.Key(), "."); strings.Contains(bad.Error(), "cannot decode") {
			want := `a string, such as "…"`
			if slices.Contains(lists, key) {
				want = `a list of strings, such as ["…", "…"]`
			}
			return fmt.Errorf("line %d: %s is not %s", row, key, want)
		}
		return fmt.Errorf("line %d: %w", row, err)
	}
	return err
}

// print writes the settings in the form of the configuration file, with the origin of each as a
// comment.
func (c *config) print(w io.Writer) {
	for _, s := range []struct {
		name string
		setting
		list []string // the values of a setting that has several
	}{
		{name: "socket", setting: c.socket}, {"listen", c.listen, cluster.Split(c.listen.value)}, {name: "log-level", setting: c.logLevel}, {name: "log-format", setting: c.format},
		{name: "bind", setting: c.bind}, {"join", c.join, cluster.Split(c.join.value)}, {name: "cluster", setting: c.cluster}, {name: "key-file", setting: c.keyFile},
		{name: "tls-cert", setting: c.tlsCert}, {name: "tls-key", setting: c.tlsKey}, {name: "tls-ca", setting: c.tlsCA}, {name: "group", setting: c.group},
		{name: "search", setting: c.search}, {name: "poll", setting: c.poll}, {name: "http", setting: c.http}, {"label", c.label, c.given}, {name: "image", setting: c.image}, {name: "tpvm", setting: c.tpvm},
		{"metrics-label", c.metricsLabel, cluster.Split(c.metricsLabel.value)}, {name: "metrics-series", setting: c.metricsSeries},
	} {
		value := tomlString(s.value)
		if slices.Contains(lists, s.name) {
			var all []string
			for _, v := range s.list {
				all = append(all, tomlString(v))
			}
			value = "[" + strings.Join(all, ", ") + "]"
		}
		fmt.Fprintf(w, "%-10s = %-40s # %s\n", s.name, value, display.Escape(s.origin))
	}
}

// tomlString returns s as a basic string of TOML.
func tomlString(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case display.IsSafe(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			b = fmt.Appendf(b, "\\U%08X", r)
		default:
			b = fmt.Appendf(b, "\\u%04X", r)
		}
	}
	return string(append(b, '"'))
}
