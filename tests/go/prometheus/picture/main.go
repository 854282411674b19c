// Command picture draws the panels of the dashboard in deploy/observability with the metrics of a run.
//
// Its arguments are the dashboard and a directory of scrapes, each a file `<Unix time in seconds>.<anything>`, which the chaos
// soak writes to CHAOS_SCRAPES. Prometheus' own engine evaluates the queries; the drawing is not Grafana's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	step = 15 * time.Second
	// Four scrapes, like Grafana.
	rateInterval = "1m"
	column       = 38.0
	row          = 21.0
	columns      = 24
)

var palette = []color.RGBA{
	{0x1f, 0x77, 0xb4, 0xff}, {0xd6, 0x5f, 0x0e, 0xff}, {0x2c, 0x8a, 0x2c, 0xff},
	{0xb8, 0x20, 0x25, 0xff}, {0x80, 0x57, 0xa8, 0xff}, {0x6e, 0x6e, 0x6e, 0xff},
}

type target struct {
	Expr         string
	LegendFormat string
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H float64 }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []target
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: picture DASHBOARD SCRAPES > PICTURE.svg")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dashboard, scrapes string, to io.Writer) error {
	text, err := os.ReadFile(dashboard)
	if err != nil {
		return err
	}
	var board struct{ Panels []panel }
	if err := json.Unmarshal(text, &board); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "picture")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := tsdb.Open(dir, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	start, end, err := load(db, scrapes)
	if err != nil {
		return err
	}
	series := &source{
		db: db, start: start, end: end,
		engine: promql.NewEngine(promql.EngineOpts{
			MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 2 * step, Parser: parser.NewParser(parser.Options{}),
		}),
	}
	height := 0.0
	for _, panel := range board.Panels {
		height = max(height, panel.GridPos.Y+panel.GridPos.H)
	}
	svg := vgsvg.NewWith(vgsvg.UseWH(vg.Points(columns*column), vg.Points(height*row)))
	all := draw.New(svg)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	for _, panel := range board.Panels {
		at := panel.GridPos
		left, right := at.X*column+6, (at.X+at.W)*column-6
		top, bottom := (height-at.Y)*row-4, (height-at.Y-at.H)*row+4
		canvas := draw.Canvas{Canvas: all.Canvas, Rectangle: vg.Rectangle{
			Min: vg.Point{X: vg.Points(left), Y: vg.Points(bottom)},
			Max: vg.Point{X: vg.Points(right), Y: vg.Points(top)},
		}}
		if err := paint(canvas, panel, series); err != nil {
			return fmt.Errorf("panel %s: %w", panel.Title, err)
		}
	}
	_, err = svg.WriteTo(to)
	return err
}

// load stores all scrapes as one target, whose process may change.
func load(db *tsdb.DB, dir string) (start, end time.Time, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return start, end, err
	}
	slices.Sort(files)
	for _, file := range files {
		second, _, _ := strings.Cut(filepath.Base(file), ".")
		unix, err := strconv.ParseInt(second, 10, 64)
		if err != nil {
			return start, end, fmt.Errorf("%s: its name does not start with a time", file)
		}
		at := time.Unix(unix, 0)
		if at.Equal(end) {
			// Two processes in one second: one of them is about to end.
			continue
		}
		if start.IsZero() {
			start = at
		}
		end = at
		text, err := os.ReadFile(file)
		if err != nil {
			return start, end, err
		}
		if err := store(db, at, text); err != nil {
			return start, end, fmt.Errorf("%s: %w", file, err)
		}
	}
	if start.Equal(end) {
		return start, end, fmt.Errorf("%s: too few scrapes", dir)
	}
	return start, end, nil
}

func store(db *tsdb.DB, at time.Time, text []byte) error {
	appender := db.Appender(context.Background())
	scrape := textparse.NewPromParser(text, labels.NewSymbolTable(), false)
	for {
		entry, err := scrape.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := scrape.Series()
		var of labels.Labels
		scrape.Labels(&of)
		of = labels.NewBuilder(of).Set("job", "gloo-router").Labels()
		if _, err := appender.Append(0, of, at.UnixMilli(), value); err != nil {
			return err
		}
	}
}

type source struct {
	db         *tsdb.DB
	engine     *promql.Engine
	start, end time.Time
}

// query returns the series of a target by their legends.
func (s *source) query(of target) (map[string]promql.Series, error) {
	expr := strings.ReplaceAll(of.Expr, "$__rate_interval", rateInterval)
	query, err := s.engine.NewRangeQuery(context.Background(), s.db, nil, expr, s.start, s.end, step)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(context.Background())
	matrix, err := result.Matrix()
	if err != nil {
		return nil, err
	}
	named := map[string]promql.Series{}
	for _, series := range matrix {
		label := regexp.MustCompile(`\{\{(\w+)\}\}`)
		legend := label.ReplaceAllStringFunc(of.LegendFormat, func(name string) string {
			return series.Metric.Get(strings.Trim(name, "{}"))
		})
		series.Floats = slices.Clone(series.Floats)
		named[legend] = series
	}
	return named, nil
}

func paint(canvas draw.Canvas, panel panel, from *source) error {
	if panel.Type == "stat" {
		return paintStat(canvas, panel, from)
	}
	plotted := plot.New()
	plotted.Title.Text = panel.Title
	plotted.Title.TextStyle.Font.Size = 11
	plotted.X.Tick.Marker = plot.TimeTicks{Format: "15:04"}
	plotted.X.Tick.Label.Font.Size = 8
	plotted.Y.Tick.Label.Font.Size = 8
	plotted.Y.Tick.Marker = ticks{unit: panel.FieldConfig.Defaults.Unit}
	plotted.Y.Min = 0
	plotted.Legend.Top = true
	plotted.Legend.Left = true
	plotted.Legend.TextStyle.Font.Size = 8
	plotted.Add(plotter.NewGrid())
	next, highest := 0, 0.0
	for _, target := range panel.Targets {
		named, err := from.query(target)
		if err != nil {
			return err
		}
		for _, legend := range slices.Sorted(maps.Keys(named)) {
			var style draw.LineStyle
			for _, points := range unbroken(named[legend].Floats, &highest) {
				line, err := plotter.NewLine(points)
				if err != nil {
					return err
				}
				line.Color = palette[next%len(palette)]
				line.Width = vg.Points(1.2)
				if next >= len(palette) {
					line.Dashes = []vg.Length{3, 2}
				}
				style = line.LineStyle
				plotted.Add(line)
			}
			plotted.Legend.Add(legend, &plotter.Line{LineStyle: style})
			next++
		}
	}
	plotted.X.Min, plotted.X.Max = float64(from.start.Unix()), float64(from.end.Unix())
	// Room for the legend.
	plotted.Y.Max = max(highest*1.5, 1e-3)
	plotted.Draw(canvas)
	return nil
}

// unbroken splits a series at its gaps.
func unbroken(points []promql.FPoint, highest *float64) []plotter.XYs {
	var lines []plotter.XYs
	var line plotter.XYs
	last := int64(math.MinInt64)
	for _, point := range points {
		isGap := math.IsNaN(point.F) || math.IsInf(point.F, 0)
		if (isGap || point.T-last > step.Milliseconds()) && len(line) > 0 {
			lines = append(lines, line)
			line = nil
		}
		if !isGap {
			line = append(line, plotter.XY{X: float64(point.T) / 1000, Y: point.F})
			*highest = max(*highest, point.F)
			last = point.T
		}
	}
	if len(line) > 0 {
		lines = append(lines, line)
	}
	return lines
}

func paintStat(canvas draw.Canvas, panel panel, from *source) error {
	text := "-"
	for _, target := range panel.Targets {
		named, err := from.query(target)
		if err != nil {
			return err
		}
		for legend, series := range named {
			last := series.Floats[len(series.Floats)-1].F
			text = legend
			if !strings.Contains(target.LegendFormat, "{{") {
				text = in(panel.FieldConfig.Defaults.Unit, last)
			}
		}
	}
	style := plot.New().Title.TextStyle
	style.XAlign = draw.XCenter
	center := canvas.Center()
	style.Font.Size = 18
	canvas.FillText(style, vg.Point{X: center.X, Y: center.Y - 12}, text)
	style.Font.Size = 9
	canvas.FillText(style, vg.Point{X: center.X, Y: canvas.Max.Y - 14}, panel.Title)
	return nil
}

// ticks labels an axis with the unit of its panel.
type ticks struct{ unit string }

func (t ticks) Ticks(low, high float64) []plot.Tick {
	marks := plot.DefaultTicks{}.Ticks(low, high)
	for i, mark := range marks {
		if mark.Label != "" {
			marks[i].Label = in(t.unit, mark.Value)
		}
	}
	return marks
}

func in(unit string, value float64) string {
	number := func(value float64) string { return strconv.FormatFloat(value, 'g', 4, 64) }
	switch {
	case unit == "bytes" && value >= 1<<20:
		return number(value/(1<<20)) + " MiB"
	case unit == "bytes" && value >= 1<<10:
		return number(value/(1<<10)) + " KiB"
	case unit == "percentunit":
		return number(math.Round(value*1000)/10) + " %"
	case unit == "s" && value > 0 && value < 1:
		return number(value*1000) + " ms"
	case unit == "s":
		return number(value) + " s"
	case unit == "ops":
		return number(value) + "/s"
	default:
		return number(value)
	}
}
