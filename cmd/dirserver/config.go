package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/rocl-go/rocl/directory"
	"github.com/spf13/cobra"
)

// setting is a value and where it comes from.
type setting struct{ value, origin string }

type config struct {
	socket, listen, logLevel, format setting

	paths []string // of listen
	urls  []string // likewise, TCP
	level slog.Level
}

// fileConfig is the configuration file.
type fileConfig struct {
	Socket    *string   `toml:"socket"`
	Listen    *[]string `toml:"listen"`
	LogLevel  *string   `toml:"log-level"`
	LogFormat *string   `toml:"log-format"`
}

// settings collects the configuration: flags before environment before file
// before default.
func settings(cmd *cobra.Command, file string) (*config, error) {
	var fc fileConfig
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		d := toml.NewDecoder(strings.NewReader(string(b))).DisallowUnknownFields()
		if err := d.Decode(&fc); err != nil {
			return nil, fmt.Errorf("reading the configuration %s: %w", file, place(err))
		}
	}
	var joined *string
	if fc.Listen != nil {
		s := strings.Join(*fc.Listen, ",")
		joined = &s
	}
	pick := func(flag, env string, inFile *string, def string) setting {
		if fl := cmd.Flags().Lookup(flag); fl.Changed {
			if flag == "listen" {
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
		listen:   pick("listen", "ROCL_LISTEN", joined, ""),
		logLevel: pick("log-level", "ROCL_LOG_LEVEL", fc.LogLevel, "info"),
		format:   pick("log-format", "ROCL_LOG_FORMAT", fc.LogFormat, ""),
	}
	if c.socket.value == "" {
		return nil, fmt.Errorf("the path of the socket (%s) is empty", c.socket.origin)
	}
	if err := c.level.UnmarshalText([]byte(c.logLevel.value)); err != nil {
		return nil, fmt.Errorf("log level %q (%s) is not debug, info, warn or error", c.logLevel.value, c.logLevel.origin)
	}
	if f := c.format.value; f != "" && f != "text" && f != "json" {
		return nil, fmt.Errorf("log format %q (%s) is not text or json", f, c.format.origin)
	}
	for _, u := range strings.Split(c.listen.value, ",") {
		if u == "" {
			continue
		}
		if directory.IsTCP(u) {
			c.urls = append(c.urls, u)
			continue
		}
		path, ok := strings.CutPrefix(u, "unix:")
		path = strings.TrimPrefix(path, "//")
		if !ok || path == "" {
			return nil, fmt.Errorf("cannot serve at %q (%s): only unix:PATH and tcp://HOST:PORT are known", u, c.listen.origin)
		}
		if path == c.socket.value || slices.Contains(c.paths, path) {
			return nil, fmt.Errorf("%q (%s) is served already", u, c.listen.origin)
		}
		c.paths = append(c.paths, path)
	}
	return c, nil
}

// place adds to an error of the decoder where it is and which setting it is
// about.
func place(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		e := &unknown.Errors[0]
		row, _ := e.Position()
		return fmt.Errorf("line %d: no such setting: %s", row, strings.Join(e.Key(), "."))
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		row, _ := bad.Position()
		return fmt.Errorf("line %d: %w", row, err)
	}
	return err
}

func (c *config) print(w io.Writer) {
	for _, s := range []struct {
		name string
		setting
	}{{"socket", c.socket}, {"listen", c.listen}, {"log-level", c.logLevel}, {"log-format", c.format}} {
		fmt.Fprintf(w, "%-10s = %-40q # %s\n", s.name, s.value, s.origin)
	}
}
