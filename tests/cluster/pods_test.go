// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// podUser is the user of the image.
const podUser = 65532

// imageRoot makes the image of packaging/image with static programs, and unpacks its root.
func imageRoot(t *testing.T, dir string) (root string) {
	t.Helper()
	bin, file := filepath.Join(dir, "programs"), filepath.Join(dir, "image.tar")
	for _, args := range [][]string{
		{"build", "-ldflags=-s -w", "-o", bin + "/", "./cmd/rocl", "./cmd/dirserver"},
		{"run", "./packaging/image", file, "test", runtime.GOARCH + "=" + bin},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v: %s", args, err, out)
		}
	}
	files := map[string][]byte{}
	unpack(t, try.Get(os.ReadFile(file))(t), func(h *tar.Header, b []byte) { files[h.Name] = b })
	// The index leads to the index of the tag, that to the manifest, and that to the layer.
	name := "index.json"
	for range 3 {
		var next struct {
			Manifests, Layers []struct {
				Digest string
				Size   int
			}
		}
		try.OK(t, json.Unmarshal(files[name], &next))
		to := append(next.Manifests, next.Layers...)
		if len(to) != 1 {
			t.Fatalf("%s: %s", name, files[name])
		}
		name = "blobs/" + strings.Replace(to[0].Digest, ":", "/", 1)
		if got := fmt.Sprintf("sha256:%x", sha256.Sum256(files[name])); got != to[0].Digest || len(files[name]) != to[0].Size {
			t.Fatalf("%s has the digest %s and %d bytes, want %+v", name, got, len(files[name]), to[0])
		}
	}
	root = filepath.Join(dir, "root")
	try.OK(t, os.Mkdir(root, 0o755))
	layer := try.Get(io.ReadAll(try.Get(gzip.NewReader(bytes.NewReader(files[name])))(t)))(t)
	unpack(t, layer, func(h *tar.Header, b []byte) {
		path, mode := filepath.Join(root, filepath.FromSlash(h.Name)), h.FileInfo().Mode()
		if h.Typeflag == tar.TypeDir {
			try.OK(t, os.Mkdir(path, mode))
		} else {
			try.OK(t, os.WriteFile(path, b, mode))
		}
		try.OK(t, errors.Join(os.Chown(path, h.Uid, h.Gid), os.Chmod(path, mode)))
	})
	return root
}

// unpack calls f for each file of a tar file.
func unpack(t *testing.T, b []byte, f func(h *tar.Header, content []byte)) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		try.OK(t, err)
		f(h, try.Get(io.ReadAll(r))(t))
	}
}

// A pod is a node whose containers share its network, its address and the folder /run/rocl.
type pod struct {
	*node
	root   string
	holder *subprocess.Process // has the pod's mounts
}

// newPod makes a pod as packaging/kubernetes describes it: the root is read-only, and /run/rocl is
// 64 KiB of memory.
func newPod(n *node, root string) *pod {
	n.lab.t.Helper()
	mounts := fmt.Sprintf(`cd %[1]s && mount --bind . . && cd %[1]s && mount -o remount,bind,ro . && mount -t tmpfs -o size=64k,mode=2777,gid=%d none run/rocl && echo mounted && exec cat`, root, podUser)
	p := try.Get(in(n.ns, exec.Command("unshare", "--mount", "sh", "-c", mounts)))(n.lab.t)
	n.lab.t.Cleanup(p.Kill)
	try.OK(n.lab.t, p.Expect(eventually.Context(n.lab.t), "mounted"))
	return &pod{n, root, p}
}

// container starts a program of the image in a container of the pod, which has its own processes.
// The first of them is a shell that stays root: the kernel kills it with this process, which it
// does not do with a process that has changed its user.
func (p *pod) container(args ...string) *subprocess.Process {
	t := p.lab.t
	t.Helper()
	words := []string{"--mount", "--target", fmt.Sprint(p.holder.Cmd.Process.Pid), "unshare", "--pid", "--fork", "--kill-child", "--mount-proc=" + p.root + "/proc",
		"sh", "-c", `"$@"; exit $?`, "sh", "chroot", fmt.Sprintf("--userspec=%d:%[1]d", podUser), p.root}
	cmd := exec.Command("nsenter", append(words, args...)...)
	cmd.Env = []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin", "ROCL_SOCKET=/run/rocl/directory.sock"}
	c := try.Get(in(p.ns, cmd))(t)
	t.Cleanup(c.Kill)
	return c
}

// answerSRV serves DNS for the names of a headless service, in the namespace of a node: the service
// has SRV records of all hosts.
func answerSRV(t *testing.T, n *node, service string, hosts ...string) {
	pc := try.Get(inside(n, func() (net.PacketConn, error) { return net.ListenPacket("udp", n.host+":53") }))(t)
	t.Cleanup(func() { pc.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			size, from, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:size]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			name := q.Name.String()
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			h := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 5}
			target := func(host string) string { return strings.ReplaceAll(host, ".", "-") + "." + service }
			switch {
			case q.Type == dnsmessage.TypeSRV && name == "_member._udp."+service:
				for _, host := range hosts {
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.SRVResource{Port: 7946, Target: dnsmessage.MustNewName(target(host))}})
				}
			case q.Type == dnsmessage.TypeA:
				for _, host := range hosts {
					if target(host) == name {
						m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: [4]byte(net.ParseIP(host).To4())}})
					}
				}
			}
			if !slices.ContainsFunc(hosts, func(host string) bool { return target(host) == name || name == "_member._udp."+service }) {
				m.RCode = dnsmessage.RCodeNameError
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(answer, from)
			}
		}
	}()
}

// The image runs with a read-only root and 64 KiB of /run, as no user of the machine. Programs in
// two containers of a pod, and in two pods, talk. The pods find each other by SRV records.
//
// Promise (Clusters): The image runs with a read-only root, as a user without rights. Containers of
// one pod, and of two pods, talk.
func TestPods(t *testing.T) {
	l := newLab(t, 2)
	a, b := l.nodes[0], l.nodes[1]
	try.OK(t, os.Chmod(l.dir, 0o711))
	root := imageRoot(t, l.dir)
	key := filepath.Join(root, "etc/key")
	try.OK(t, os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	try.OK(t, errors.Join(os.Chown(key, 0, podUser), os.Chmod(key, 0o440))) // as Kubernetes does
	try.OK(t, os.WriteFile(filepath.Join(root, "etc/resolv.conf"), []byte("nameserver "+a.host+"\nsearch default.svc.cluster.local\noptions ndots:5\n"), 0o644))
	answerSRV(t, a, "rocl.default.svc.cluster.local.", a.host, b.host)

	pods := []*pod{newPod(a, root), newPod(b, root)}
	for _, p := range pods {
		p.container("/bin/dirserver", "--bind", p.bind(), "--join", "srv:_member._udp.rocl", "--key-file", "/etc/key")
	}
	for i, name := range []string{"x", "y"} {
		receiver := pods[0].container("/bin/rocl", "recv", "name="+name, "--count", "1", "--timeout", "1m")
		sender := pods[i].container("/bin/rocl", "send", "name="+name, "--wait", "2m", "--timeout", "1m")
		try.OK(t, sender.WriteLine("hello", name))
		sender.CloseInput()
		try.OK(t, receiver.Expect(eventually.Context(t), "hello "+name))
		try.OK(t, sender.Wait())
		try.OK(t, receiver.Wait())
	}
}
