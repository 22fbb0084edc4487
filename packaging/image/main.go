// SPDX-License-Identifier: Apache-2.0

// Command image makes an OCI image of static programs, without a daemon. The result is a tar file
// with the layout of the OCI image specification, which podman, skopeo and containerd load. The
// same programs give the same bytes.
//
//	image FILE TAG ARCH=FOLDER...
//
// Each folder has programs of one architecture. The image runs dirserver as user 65532, with the
// node's socket in /run/rocl. Nothing else needs to be writable.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

const (
	user     = 65532
	indexes  = "application/vnd.oci.image.index.v1+json"
	manifest = "application/vnd.oci.image.manifest.v1+json"
	configs  = "application/vnd.oci.image.config.v1+json"
	layers   = "application/vnd.oci.image.layer.v1.tar+gzip"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: image FILE TAG ARCH=FOLDER...")
		os.Exit(2)
	}
	var b bytes.Buffer
	err := write(&b, os.Args[2], os.Args[3:])
	if err == nil {
		err = os.WriteFile(os.Args[1], b.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// A descriptor names a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// An image is the tar file that is written. Its err is the first error.
type image struct {
	tar *tar.Writer
	has map[string]bool // blobs that are written
	err error
}

// write writes an image with a tag, and a manifest for each of the platforms, ARCH=FOLDER.
func write(w io.Writer, tag string, platforms []string) error {
	m := &image{tar: tar.NewWriter(w), has: map[string]bool{}}
	m.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	var all []descriptor
	for _, p := range platforms {
		arch, dir, _ := strings.Cut(p, "=")
		layer, err := root(dir)
		if err != nil {
			return err
		}
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		_, _ = z.Write(layer) // a bytes.Buffer takes everything
		_ = z.Close()
		config := m.json(configs, map[string]any{
			"architecture": arch, "os": "linux",
			"config": map[string]any{
				"User": fmt.Sprintf("%d:%d", user, user), "Env": []string{"PATH=/bin", "ROCL_SOCKET=/run/rocl/directory.sock"},
				"Entrypoint": []string{"/bin/dirserver"}, "Volumes": map[string]any{"/run/rocl": struct{}{}},
			},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
		})
		d := m.json(manifest, map[string]any{
			"schemaVersion": 2, "mediaType": manifest, "config": config, "layers": []descriptor{m.blob(layers, zipped.Bytes())},
		})
		d.Platform = map[string]string{"architecture": arch, "os": "linux"}
		all = append(all, d)
	}
	index := m.json(indexes, map[string]any{"schemaVersion": 2, "mediaType": indexes, "manifests": all})
	index.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag}
	b, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexes, "manifests": []descriptor{index}})
	if err != nil {
		return err
	}
	m.file("index.json", b)
	if m.err == nil {
		m.err = m.tar.Close()
	}
	return m.err
}

// root returns the tar file of a root with the programs of a folder in /bin.
func root(dir string) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	add := func(h tar.Header, content []byte) error {
		h.Size, h.Format = int64(len(content)), tar.FormatUSTAR
		err := t.WriteHeader(&h)
		if err == nil {
			_, err = t.Write(content)
		}
		return err
	}
	for _, h := range []tar.Header{
		{Name: "bin/", Mode: 0o755}, {Name: "etc/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777}, {Name: "proc/", Mode: 0o755}, {Name: "dev/", Mode: 0o755}, {Name: "run/", Mode: 0o755},
		{Name: "run/rocl/", Mode: 0o700, Uid: user, Gid: user},
	} {
		h.Typeflag = tar.TypeDir
		if err := add(h, nil); err != nil {
			return nil, err
		}
	}
	if err := add(tar.Header{Name: "etc/passwd", Mode: 0o644}, fmt.Appendf(nil, "rocl:x:%d:%[1]d::/run/rocl:/bin/false\n", user)); err != nil {
		return nil, err
	}
	programs, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil, err
	}
	for _, p := range programs {
		content, err := os.ReadFile(filepath.Join(dir, p.Name()))
		if err == nil {
			err = add(tar.Header{Name: "bin/" + p.Name(), Mode: 0o755}, content)
		}
		if err != nil {
			return nil, err
		}
	}
	err = t.Close()
	return b.Bytes(), err
}

// json writes a blob of JSON.
func (m *image) json(mediaType string, v any) descriptor {
	b, err := json.Marshal(v)
	if err != nil && m.err == nil {
		m.err = err
	}
	return m.blob(mediaType, b)
}

// blob writes a blob.
func (m *image) blob(mediaType string, b []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(b), Size: len(b)}
	if !m.has[d.Digest] {
		m.has[d.Digest] = true
		m.file("blobs/"+strings.Replace(d.Digest, ":", "/", 1), b)
	}
	return d
}

// file writes a file.
func (m *image) file(name string, b []byte) {
	if m.err != nil {
		return
	}
	if m.err = m.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b)), Format: tar.FormatUSTAR}); m.err == nil {
		_, m.err = m.tar.Write(b)
	}
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
