// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"archive/zip"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

// moduleFolders returns the folders of the modules of the repository, relative to its root.
func moduleFolders(t *testing.T) (dirs []string) {
	for _, p := range try.Get(tree.Files("..", func(p string) bool { return path.Base(p) == "go.mod" }))(t) {
		dirs = append(dirs, path.Dir(p))
	}
	return dirs
}

// release returns the version of the library that the modules below the root require.
func release(t *testing.T) string {
	text, err := os.ReadFile("../cmd/go.mod")
	found := regexp.MustCompile(`\t` + module + ` (v\S+)`).FindStringSubmatch(string(text))
	if err != nil || found == nil {
		t.Fatal("cmd/go.mod does not require the library", err)
	}
	return found[1]
}

// go.work has all modules of the repository. They require one release of the library, and replace
// nothing, because "go install" refuses a module that does.
func TestModulesAgree(t *testing.T) {
	version := release(t)
	work := try.Get(os.ReadFile("../go.work"))(t)
	if !strings.Contains(string(work), "replace "+module+" "+version+" => .\n") {
		t.Errorf("go.work does not have the library in the place of %s", version)
	}
	for _, dir := range moduleFolders(t) {
		if use := filepath.ToSlash(filepath.Join("./", dir)); !strings.Contains(string(work), "\n\t./"+use+"\n") && use != "." {
			t.Errorf("go.work does not use %s", dir)
		}
		text := try.Get(os.ReadFile(filepath.Join("..", dir, "go.mod")))(t)
		if strings.Contains(string(text), "\nreplace ") {
			t.Errorf("%s/go.mod has a replace directive", dir)
		}
		if dir != "." && !strings.Contains(string(text), "\t"+module+" "+version+"\n") {
			t.Errorf("%s/go.mod does not require %s %s", dir, module, version)
		}
	}
}

// serveModule adds a module of the repository to a module proxy, which is a folder.
func serveModule(t *testing.T, proxy, dir, version string) {
	t.Helper()
	name, src := module, filepath.Join("..", dir)
	if dir != "." {
		name += "/" + dir
	}
	into := filepath.Join(proxy, name, "@v")
	try.OK(t, os.MkdirAll(into, 0o700))
	mod := try.Get(os.ReadFile(filepath.Join(src, "go.mod")))(t)
	for file, text := range map[string]string{"list": version, version + ".mod": string(mod), version + ".info": fmt.Sprintf(`{"Version": %q}`, version)} {
		try.OK(t, os.WriteFile(filepath.Join(into, file), []byte(text), 0o600))
	}
	f := try.Get(os.Create(filepath.Join(into, version+".zip")))(t)
	defer f.Close()
	w := zip.NewWriter(f)
	others := slices.DeleteFunc(moduleFolders(t), func(other string) bool { return len(other) <= len(dir) })
	isOwn := func(p string) bool {
		return !slices.ContainsFunc(others, func(other string) bool { return strings.HasPrefix(path.Join(dir, p), other+"/") })
	}
	for _, p := range try.Get(tree.Files(src, isOwn))(t) {
		to := try.Get(w.Create(name + "@" + version + "/" + p))(t)
		try.Get(to.Write(try.Get(os.ReadFile(filepath.Join(src, p)))(t)))(t)
	}
	try.OK(t, w.Close())
}

// A modules is a folder with a module of a user. Its commands see the modules of the repository as
// released.
type modules struct {
	dir string
	env []string
}

func releasedModules(t *testing.T) *modules {
	t.Helper()
	if testing.Short() {
		t.Skip("the go command resolves modules for some seconds")
	}
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	cache, upstream, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	try.OK(t, err)
	proxy := t.TempDir()
	version := release(t)
	for _, dir := range moduleFolders(t) {
		serveModule(t, proxy, dir, version)
	}
	m := &modules{t.TempDir(), append(os.Environ(),
		"GOWORK=off", "GOSUMDB=off", "GOFLAGS=-modcacherw", "GONOPROXY=none", "GOPRIVATE=",
		"GOMODCACHE="+t.TempDir(), "GOBIN="+t.TempDir(),
		"GOPROXY=file://"+filepath.ToSlash(proxy)+",file://"+filepath.ToSlash(cache)+"/cache/download,"+upstream)}
	return m
}

func (m *modules) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = m.dir, m.env
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil && regexp.MustCompile(`dial tcp|no such host|module lookup disabled`).Match(out):
		t.Skipf("a module cannot be downloaded: %s", out)
	case err != nil:
		t.Fatalf("go %v: %v\n%.2000s", args, err, out)
	}
	return string(out)
}

// write makes a module of a program that imports packages, and tidies it. It returns the text of
// go.mod and go.sum.
func (m *modules) write(t *testing.T, packages []string, requires ...string) (mod, sum string) {
	t.Helper()
	program, requirements := "package main\n\n", "module example.com/m\n\ngo 1.26.0\n"
	for _, p := range packages {
		program += fmt.Sprintf("import _ %q\n", p)
	}
	for _, r := range requires {
		requirements += "require " + r + "\n"
	}
	for name, text := range map[string]string{"go.mod": requirements, "main.go": program + "\nfunc main() {}\n"} {
		try.OK(t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o600))
	}
	m.run(t, "mod", "tidy")
	var text [2]string
	for i, name := range []string{"go.mod", "go.sum"} {
		b := try.Get(os.ReadFile(filepath.Join(m.dir, name)))(t)
		text[i] = string(b)
	}
	return text[0], text[1]
}

// A module that imports the library requires at most five modules, the library among them, and none
// of those of commands and adapters. An adapter requires only what it adapts, and leaves a program
// the versions that it has.
//
// Promise (Source tree): A module that imports the library requires at most five modules. An
// adapter leaves a program the versions that it has.
func TestUserModules(t *testing.T) {
	m := releasedModules(t)
	version := release(t)
	lib := module + " " + version
	mod, sum := m.write(t, []string{module}, lib)
	if n := len(regexp.MustCompile(`(?m)^\s*(require )?\S+\.\S+/\S+ v\d`).FindAllString(mod, -1)); n > 5 || n == 0 {
		t.Errorf("%d requirements: %s", n, mod)
	}
	heavy := regexp.MustCompile(`(?m)^(go\.opentelemetry\.io|github\.com/(prometheus|spf13|pelletier|vbauerster)|google\.golang\.org/protobuf)\S* \S+`)
	if found := heavy.FindAllString(sum, -1); len(found) > 0 {
		t.Errorf("go.sum has %v", found)
	}
	_, sum = m.write(t, []string{module, module + "/rpc/promrpc"}, lib, module+"/rpc/promrpc "+version)
	if strings.Contains(sum, "go.opentelemetry.io/otel") {
		t.Errorf("promrpc brings OpenTelemetry")
	}
	own := []string{"go.opentelemetry.io/otel v1.38.0", "github.com/prometheus/client_golang v1.23.0"}
	packages, requires := []string{module, "go.opentelemetry.io/otel", "github.com/prometheus/client_golang/prometheus"}, append(own, lib)
	for _, adapter := range []string{"/promrocl", "/rpc/promrpc", "/rpc/otelrpc", "/dataflow/promflow", "/dataflow/otelflow", "/otelrocl", "/ofi"} {
		packages, requires = append(packages, module+adapter), append(requires, module+adapter+" "+version)
	}
	mod, _ = m.write(t, packages, requires...)
	for _, o := range own {
		if !strings.Contains(mod, o+"\n") {
			t.Errorf("%s has changed: %s", o, mod)
		}
	}
}

// The commands are installed by "go install COMMAND@VERSION", which takes no replace directive.
//
// Promise (Source tree): `go install` installs each command of a release. See also
// TestModulesAgree.
func TestInstall(t *testing.T) {
	m := releasedModules(t)
	args := []string{"install", "-n"}
	for _, command := range []string{"rocl", "dirserver", "tpvm"} {
		args = append(args, module+"/cmd/"+command+"@"+release(t))
	}
	m.run(t, args...)
}
