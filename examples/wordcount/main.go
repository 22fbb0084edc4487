// SPDX-License-Identifier: Apache-2.0

// Command wordcount counts the words of files, as tr, sort and uniq -c do:
//
//	wordcount FILE...
//
// A source reads the files, some stages divide their text into words, others count the words, each
// its own, and a sink collects the counts. The command runs all of them. With --group it runs only
// one of the groups read, split, count and print; four such processes on any nodes, started with
// the same arguments, do the same work together.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow"
)

func main() {
	n := flag.Int("n", 2, "stages that divide text, and stages that count")
	group := flag.String("group", "", "run one group: read, split, count or print")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *n, *group, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

// run counts the words of files, or does one group's part of that.
func run(ctx context.Context, n int, group string, files []string) error {
	var counts []count
	g, err := graph(n, files, &counts)
	if err != nil {
		return err
	}
	var os []dataflow.RunOption
	if group != "" {
		c, err := rocl.Open(ctx)
		if err != nil {
			return err
		}
		defer c.Close()
		os = append(os, dataflow.InGroup(c, group, dataflow.Config{}))
	}
	if err := g.Run(ctx, os...); err != nil {
		return err
	}
	return show(counts)
}

// A count says how often a word came.
type count struct {
	Word string
	N    int
}

// graph returns the graph. Its sink adds to counts.
func graph(n int, files []string, counts *[]count) (*dataflow.Graph, error) {
	read := dataflow.From(func(ctx context.Context, out dataflow.Out[[]byte]) error {
		return readAll(ctx, files, out)
	})
	split := make([]dataflow.Part[[]byte, string], n)
	tally := make([]dataflow.Part[string, count], n)
	for i := range n {
		split[i] = dataflow.Do(dataflow.Func[[]byte, string](divide), dataflow.Batch(512, 0, 0), dataflow.Policy(dataflow.ByKey(key)))
		tally[i] = dataflow.Do(counter{}, dataflow.Batch(512, 0, 0))
	}
	print := dataflow.To(func(_ context.Context, in dataflow.Item[count]) error {
		*counts = append(*counts, in.Value)
		return nil
	})
	g, err := dataflow.New("wordcount", dataflow.Pipeline3(read, dataflow.AllToAll(split, tally), print))
	if err != nil {
		return nil, err
	}
	for name, nodes := range map[string][]dataflow.Node{"read": {read}, "split": nodesOf(split), "count": nodesOf(tally), "print": {print}} {
		if err := g.Group(name, nodes...); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func nodesOf[I, O any](ps []dataflow.Part[I, O]) (all []dataflow.Node) {
	for _, p := range ps {
		all = append(all, p)
	}
	return all
}

// readAll sends the text of files in pieces that end where a word ends.
func readAll(ctx context.Context, files []string, out dataflow.Out[[]byte]) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = read(ctx, bufio.NewReader(f), out)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func read(ctx context.Context, r *bufio.Reader, out dataflow.Out[[]byte]) error {
	for {
		piece := make([]byte, 32<<10)
		n, err := io.ReadFull(r, piece)
		piece = piece[:n]
		if err == nil {
			var rest []byte
			rest, err = r.ReadBytes('\n')
			piece = append(piece, rest...)
		}
		if len(piece) > 0 {
			if err := out.Send(ctx, piece); err != nil {
				return err
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// divide sends the words of a piece of text: its longest sequences of letters and digits.
func divide(ctx context.Context, in dataflow.Item[[]byte], out dataflow.Out[string]) error {
	for word := range bytes.FieldsFuncSeq(in.Value, func(r rune) bool { return !isAlnum(r) }) {
		if err := out.Send(ctx, string(word)); err != nil {
			return err
		}
	}
	return nil
}

func isAlnum(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z'
}

// key is the same for a word in every process.
func key(word string) (h uint64) {
	for i := range len(word) {
		h = (h ^ uint64(word[i])) * 1099511628211 // FNV-1a
	}
	return h
}

// A counter counts the words that it is sent, and sends the counts in the end.
type counter map[string]int

// Process counts a word.
func (c counter) Process(_ context.Context, in dataflow.Item[string], _ dataflow.Out[count]) error {
	c[in.Value]++
	return nil
}

// Finish sends the counts.
func (c counter) Finish(ctx context.Context, out dataflow.Out[count]) error {
	for word, n := range c {
		if err := out.Send(ctx, count{word, n}); err != nil {
			return err
		}
	}
	return nil
}

// show prints counts as uniq -c does.
func show(counts []count) error {
	slices.SortFunc(counts, func(a, b count) int { return strings.Compare(a.Word, b.Word) })
	w := bufio.NewWriter(os.Stdout)
	for _, c := range counts {
		fmt.Fprintf(w, "%7d %s\n", c.N, c.Word)
	}
	return w.Flush()
}
