// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"image"
	"math"
	"math/cmplx"
)

// A view is the part of the complex plane that the picture shows: Width of it around Re + Im i.
type view struct {
	Re, Im, Width float64
	X, Y          int // pixels
	Limit         int // iterations after which a point counts as part of the set
	Samples       int // points that are computed for each pixel, in each direction
}

// edge is the width and the height of a tile in pixels.
const edge = 32

// tiles returns the number of tiles of the picture.
func (v view) tiles() int { return v.columns() * ((v.Y + edge - 1) / edge) }

func (v view) columns() int { return (v.X + edge - 1) / edge }

// tile returns the rectangle of tile k, in pixels.
func (v view) tile(k int) image.Rectangle {
	x, y := k%v.columns()*edge, k/v.columns()*edge
	return image.Rect(x, y, x+edge, y+edge).Intersect(image.Rect(0, 0, v.X, v.Y))
}

// render returns the pixels of tile k.
func (v view) render(k int) *image.RGBA {
	img := image.NewRGBA(v.tile(k))
	scale := v.Width / float64(v.X)
	n := float64(v.Samples)
	for y := img.Rect.Min.Y; y < img.Rect.Max.Y; y++ {
		for x := img.Rect.Min.X; x < img.Rect.Max.X; x++ {
			var sum [3]float64
			for s := range v.Samples * v.Samples {
				dx := (float64(s%v.Samples) + 0.5) / n
				dy := (float64(s/v.Samples) + 0.5) / n
				c := complex(
					v.Re+(float64(x)+dx-float64(v.X)/2)*scale,
					v.Im-(float64(y)+dy-float64(v.Y)/2)*scale)
				for i, light := range v.colour(c) {
					sum[i] += light
				}
			}
			p := img.Pix[img.PixOffset(x, y):]
			for i, light := range sum {
				p[i] = uint8(255*math.Pow(light/(n*n), 1/2.2) + 0.5)
			}
			p[3] = 255
		}
	}
	return img
}

// colour returns the light of a point, 0 to 1 for red, green and blue. The hue depends on how soon
// the iteration escapes. That number is also the height of a surface, which gets its light from the
// upper left.
func (v view) colour(c complex128) (rgb [3]float64) {
	n, z, dz, escapes := v.escape(c)
	if !escapes {
		return rgb
	}
	smooth := float64(n) + 1 - math.Log2(math.Log(cmplx.Abs(z)))
	normal := z / dz
	normal /= complex(cmplx.Abs(normal), 0)
	light := (real(normal)*-math.Sqrt2/2 + imag(normal)*math.Sqrt2/2 + height) / (1 + height)
	light = 0.15 + 0.85*max(0, light)
	// The phases of the three cosines make the palette: night blue, white, gold, brown.
	at := math.Sqrt(smooth) * 0.55
	for i, phase := range [3]float64{0.0, 0.45, 0.95} {
		rgb[i] = light * math.Pow(0.5-0.5*math.Cos(at+phase+2.4), 1.3)
	}
	return rgb
}

// height is the height of the light.
const height = 1.4

// escape iterates z*z + c until z is far away. It returns the number of iterations, z, and the
// derivative of z by c.
func (v view) escape(c complex128) (n int, z, dz complex128, escapes bool) {
	const far = 1e4 // of the square of |z|
	a, b := real(c), imag(c)
	if q := (a-0.25)*(a-0.25) + b*b; q*(q+a-0.25) <= b*b/4 || (a+1)*(a+1)+b*b <= 1.0/16 {
		return 0, 0, 0, false // in one of the two largest parts of the set
	}
	var x, y, dx, dy float64
	for n = range v.Limit {
		dx, dy = 2*(x*dx-y*dy)+1, 2*(x*dy+y*dx)
		x, y = x*x-y*y+a, 2*x*y+b
		if x*x+y*y > far {
			return n, complex(x, y), complex(dx, dy), true
		}
	}
	return 0, 0, 0, false
}

// check returns an error if the view is wrong.
func (v view) check() error {
	if v.X < 1 || v.Y < 1 || v.X > 1<<15 || v.Y > 1<<15 || v.Limit < 1 || v.Samples < 1 || v.Samples > 100 || !(v.Width > 0) {
		return fmt.Errorf("mandelbrot: the view %+v is not one to draw", v)
	}
	return nil
}
