// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"net"
	"path/filepath"
	"testing"
)

// A question that is answered in batches calls stop of onHangup twice.
func TestHangupStoppedTwice(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stop := onHangup(c, func() { t.Error("the other end has not hung up") })
	stop()
	stop() // must return
}
