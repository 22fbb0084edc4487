// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// packages returns the folder with what .ci/release has made. It skips the test where there is
// none.
func packages(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("ROCL_PACKAGES")
	if dir == "" {
		t.Skip("ROCL_PACKAGES does not name the folder with the packages: see make packages")
	}
	return dir
}

// filesBelow returns what the files below a folder contain, except what dpkg keeps for itself and
// the former versions of the users.
func filesBelow(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	try.OK(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		if err != nil || strings.HasPrefix(name, "var/lib/dpkg") || strings.HasPrefix(name, "etc/") && strings.HasSuffix(name, "-") || name == "etc/.pwd.lock" {
			return err
		}
		all[name] = "folder"
		if !e.IsDir() {
			b, err := os.ReadFile(path)
			all[name] = string(b)
			return err
		}
		return nil
	}))
	return all
}

// The package for Debian installs into a root, with the user of the service. Its units are valid,
// and its daemon runs under one. Nothing stays of it when it is purged. lintian finds no errors.
//
// Promise (Clusters): The package for Debian installs, runs under systemd, and is removed without a
// trace.
func TestDeb(t *testing.T) {
	dir := packages(t)
	need(t, "dpkg")
	if os.Geteuid() != 0 {
		t.Skip("only root installs packages")
	}
	deb := filepath.Join(dir, fmt.Sprintf("rocl_%s_%s.deb", strings.TrimPrefix(release(t), "v"), runtime.GOARCH))
	root := t.TempDir()
	dpkg := func(args ...string) {
		t.Helper()
		args = append([]string{"--root=" + root, "--force-script-chrootless", "--force-not-root", "--log=" + root + "/var/lib/dpkg/log"}, args...)
		if out, errOut, code := runCommand(t, eventually.Timeout, exec.Command("dpkg", args...)); code != 0 {
			t.Fatalf("dpkg %v: exit code %d, %s%s", args, code, out, errOut)
		}
	}
	for _, d := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "run"} {
		try.OK(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for file, text := range map[string]string{"var/lib/dpkg/status": "", "etc/passwd": "root:x:0:0::/root:/bin/sh\n", "etc/group": "root:x:0:\n", "etc/shadow": "root:*:1::::::\n", "etc/gshadow": "root:*::\n"} {
		try.OK(t, os.WriteFile(filepath.Join(root, file), []byte(text), 0o644))
	}
	before := filesBelow(t, root)
	dpkg("--install", deb)
	installed := filesBelow(t, root)
	if _, err := exec.LookPath("systemd-sysusers"); err == nil && (!strings.Contains(installed["etc/passwd"], "\nrocl:x:") || installed["run/rocl"] != "folder") {
		t.Errorf("the service has no user or folder: %s", installed["etc/passwd"])
	}
	for _, file := range []string{"usr/share/man/man1/rocl-find.1.gz", "usr/share/bash-completion/completions/tpvm", "usr/share/doc/rocl/copyright"} {
		if installed[file] == "" {
			t.Errorf("%s is missing", file)
		}
	}
	daemon := filepath.Join(root, "usr/bin/dirserver")
	t.Run("lintian", func(t *testing.T) {
		need(t, "lintian")
		out, errOut, code := runCommand(t, eventually.Timeout, exec.Command("lintian", "--allow-root", "--fail-on", "error", deb))
		if code != 0 {
			t.Errorf("exit code %d\n%s%s", code, out, errOut)
		}
	})
	t.Run("units", func(t *testing.T) {
		verifyUnits(t, filepath.Join(root, "usr/lib/systemd"), "/usr/bin/dirserver", daemon)
	})
	t.Run("service", func(t *testing.T) {
		m, sock := newManager(t, filepath.Join(root, "usr/lib/systemd/user/dirserver.service")), socket(t)
		m.start(daemon, "--socket", sock)
		m.until("the daemon serves", func(state string, _ int) bool { return state == "active" })
		if out, errOut, code := runCommand(t, eventually.Timeout, exec.Command(filepath.Join(root, "usr/bin/rocl"), "nodes", "--socket", sock)); code != 0 {
			t.Errorf("rocl nodes: exit code %d, %s%s", code, out, errOut)
		}
		m.stop()
	})
	dpkg("--purge", "rocl")
	after := filesBelow(t, root)
	for name, text := range after {
		if before[name] != text {
			t.Errorf("%s stays or has changed: %q", name, text)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			t.Errorf("%s was removed", name)
		}
	}
}

// A bill of materials has the modules of the commands, with versions and checksums.
func TestBillOfMaterials(t *testing.T) {
	cmd := exec.Command("go", "run", "./packaging/sbom", "1.2.3", dirserver, rocl)
	cmd.Dir = ".."
	out, errOut, code := runCommand(t, 5*eventually.Timeout, cmd)
	var bill struct {
		SpecVersion string
		Components  []struct {
			Name, Version string
			Hashes        []struct{ Content string }
		}
		Dependencies []struct{ DependsOn []string }
	}
	if err := json.Unmarshal([]byte(out), &bill); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errOut)
	}
	found := map[string]string{}
	for _, c := range bill.Components {
		found[c.Name] = c.Version
		if c.Name == "github.com/spf13/cobra" && (c.Version < "v1" || len(c.Hashes) != 1 || len(c.Hashes[0].Content) != 64) {
			t.Errorf("%s %s, %v", c.Name, c.Version, c.Hashes)
		}
	}
	for name, version := range map[string]string{"dirserver": "1.2.3", "rocl": "1.2.3", module: "v1.2.3", "std": runtime.Version()} {
		try.Equal(t, found[name], version, "%s", name)
	}
	if found["github.com/spf13/cobra"] == "" || len(bill.Dependencies) != 2 || len(bill.Dependencies[0].DependsOn) < 10 {
		t.Errorf("the dependencies are %v", bill.Dependencies)
	}
}

// The packages for RPM have the files of the one for Debian, and scripts as that one has.
func TestRPM(t *testing.T) {
	dir := packages(t)
	need(t, "rpm")
	need(t, "dpkg-deb")
	want := map[string]bool{}
	deb := fmt.Sprintf("rocl_%s_%s.deb", strings.TrimPrefix(release(t), "v"), runtime.GOARCH)
	data := try.Get(exec.Command("dpkg-deb", "--fsys-tarfile", filepath.Join(dir, deb)).Output())(t)
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		try.OK(t, err)
		if h.Typeflag == tar.TypeReg {
			want[fmt.Sprintf("%#o %s", 0o100000|h.Mode, strings.TrimPrefix(h.Name, "."))] = true
		}
	}
	all := try.Get(filepath.Glob(filepath.Join(dir, "*.rpm")))(t)
	if len(all) == 0 || len(want) < 20 {
		t.Fatalf("%d packages for RPM; that for Debian has %d files", len(all), len(want))
	}
	for _, file := range all {
		out, errOut, code := runCommand(t, eventually.Timeout, exec.Command("rpm", "-qp", "--qf", `[%{FILEMODES:octal} %{FILENAMES}\n]`, file))
		got := map[string]bool{}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "0100") || strings.HasPrefix(line, "100") {
				got["0"+strings.TrimLeft(strings.TrimSpace(line), "0")] = true
			}
		}
		if code != 0 || !maps.Equal(got, want) {
			t.Errorf("%s: exit code %d, %v, want %v; %s", filepath.Base(file), code, got, want, errOut)
		}
		scripts, errOut, code := runCommand(t, eventually.Timeout, exec.Command("rpm", "-qp", "--scripts", file))
		for _, script := range []string{"postinstall", "preuninstall", "postuninstall"} {
			if code != 0 || !strings.Contains(scripts, script+" scriptlet") {
				t.Errorf("%s: exit code %d, no script %s: %s%s", filepath.Base(file), code, script, scripts, errOut)
			}
		}
	}
}

// Release archives, bills of materials and the image are reproducible: the same source gives the
// same bytes in another folder, for each system.
func TestReproducible(t *testing.T) {
	dir, other := packages(t), t.TempDir()
	text := try.Get(exec.Command("git", "log", "-1", "--format=%ct").Output())(t)
	try.OK(t, exec.Command("sh", "-c", `cd .. && git ls-files -z | tar --null -T - -c | tar -x -C "$0"`, other).Run())
	version := strings.TrimPrefix(release(t), "v")
	var systems []string
	for _, file := range try.Get(filepath.Glob(filepath.Join(dir, "rocl-"+version+"-*.tar.gz")))(t) {
		system := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(file), ".tar.gz"), "rocl-"+version+"-")
		systems = append(systems, strings.Replace(system, "-", "/", 1))
	}
	cmd := exec.Command(".ci/release", version)
	cmd.Dir, cmd.Env = other, append(os.Environ(), "OUT="+other+"/out", "SYSTEMS="+strings.Join(systems, " "), "PACKAGES=", "SOURCE_DATE_EPOCH="+strings.TrimSpace(string(text)))
	if out, errOut, code := runCommand(t, 40*time.Minute, cmd); code != 0 {
		t.Fatalf("exit code %d, %s%s", code, out, errOut)
	}
	made := 0
	for _, e := range try.Get(os.ReadDir(filepath.Join(other, "out")))(t) {
		if e.Name() == "SHA256SUMS" { // lists the packages too
			continue
		}
		made++
		a, b := try.Get(os.ReadFile(filepath.Join(dir, e.Name())))(t), try.Get(os.ReadFile(filepath.Join(other, "out", e.Name())))(t)
		if !bytes.Equal(a, b) {
			t.Errorf("%s has %d and %d bytes, which differ", e.Name(), len(a), len(b))
		}
	}
	if want := 2*len(systems) + 1; made != want || made < 3 {
		t.Errorf("%d files were made, want %d: an archive and a bill of each system, and an image", made, want)
	}
}
