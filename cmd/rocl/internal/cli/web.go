// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"html"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/internal/web"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

func webCommand() *cobra.Command {
	var open bool
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Print a URL of the page that shows what goes on in this node",
		Long: "Print a URL of the page that 'dirserver --http' serves. The URL is valid once, for two minutes, and only on this machine:\n" +
			"the browser then shows identifiers and attributes for twelve hours, or until the daemon ends.\n" +
			"From another machine: 'ssh -L 9464:localhost:9464 NODE', and the URL with that port.\n" +
			"Exit code 2 if no daemon with a page serves the directory.",
		Args: func(cmd *cobra.Command, args []string) error { return usage.Nothing(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := Flags(cmd)
			at, err := pageURL(g)
			if err != nil {
				return err
			}
			if open {
				return openPage(g, at)
			}
			if g.JSON {
				return Print(cmd.OutOrStdout(), map[string]string{"url": at})
			}
			fmt.Fprintln(cmd.OutOrStdout(), display.Quote(at))
			return nil
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, "open the URL in a browser")
	return cmd
}

// pageURL returns a URL of the page. It fails if no daemon answers there.
func pageURL(g Globals) (string, error) {
	at, err := web.URL(g.path())
	if err != nil {
		return "", err
	}
	network, address := "unix", strings.TrimPrefix(at, "unix:")
	if u, err := url.Parse(at); err == nil && u.Scheme == "http" {
		network, address = "tcp", u.Host
	}
	nc, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return "", fmt.Errorf("%w: %w", web.ErrNoPage, err)
	}
	nc.Close()
	return at, nil
}

// openPage opens a URL in a browser. Other users can see the arguments of a process, so the browser
// gets the URL by a file that only this user can read.
func openPage(g Globals, at string) error {
	if strings.HasPrefix(at, "unix:") {
		return errors.New("a browser opens no Unix socket: 'ssh -L 9464:PATH NODE' makes it a port, or 'curl --unix-socket PATH http://localhost/' reads it")
	}
	file := g.path() + ".web.html"
	_ = os.Remove(file) // of an earlier URL
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "<!doctype html><meta http-equiv=refresh content=\"0; url=%s\">\n", html.EscapeString(at))
	if err = errors.Join(err, f.Close()); err == nil {
		err = exec.Command("xdg-open", file).Run()
	}
	if err != nil {
		return fmt.Errorf("open %s in a browser: %w", file, err)
	}
	return nil
}
