//! Line charts as inline SVG: no script, colours from the page's style sheet.

use std::fmt::Write;

use super::escape;

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
/// Space for the labels of the axes.
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 36.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 12.0;

/// Curves over one pair of axes.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
}

/// An axis that starts at 0.
pub(super) struct Axis {
    pub(super) label: String,
    /// The end of the axis.
    pub(super) max: f64,
}

/// Points of one policy.
pub(super) struct Curve {
    pub(super) label: String,
    /// Its index among all policies of the page, which determines its colour.
    pub(super) number: usize,
    /// Ascending in x.
    pub(super) points: Vec<(f64, f64)>,
}

impl Axis {
    /// An axis that covers `values`, with a round end.
    pub(super) fn fitting(label: &str, values: impl Iterator<Item = f64>) -> Axis {
        let max = values.fold(0.0, f64::max);
        let step = 10f64.powf(max.max(1e-9).log10().floor()) / 2.0;
        Axis { label: label.to_owned(), max: (max / step).ceil().max(1.0) * step }
    }

    /// Positions of the labels: the ends of four equal parts.
    fn marks(&self) -> impl Iterator<Item = f64> {
        (0..=4).map(|part| self.max * f64::from(part) / 4.0)
    }
}

impl Chart<'_> {
    /// The chart as an element of a page.
    pub(super) fn svg(&self) -> String {
        let title = escape(self.title);
        let mut svg = format!(
            "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
        );
        self.axes(&mut svg);
        self.curves.iter().for_each(|curve| self.curve(curve, &mut svg));
        svg + "</svg></figure>\n"
    }

    fn place(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let share = |value: f64, axis: &Axis| (value / axis.max).clamp(0.0, 1.0);
        (LEFT + width * share(x, &self.x), TOP + height * (1.0 - share(y, &self.y)))
    }

    fn axes(&self, svg: &mut String) {
        for mark in self.y.marks() {
            let (x, y) = self.place((0.0, mark));
            let end = WIDTH - RIGHT;
            write(svg, format_args!("<path class=\"grid\" d=\"M{x:.1} {y:.1}H{end}\"/>"));
            write(
                svg,
                format_args!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" class=\"y\">{}</text>",
                    x - 6.0,
                    y + 4.0,
                    number(mark)
                ),
            );
        }
        for mark in self.x.marks() {
            let (x, y) = self.place((mark, 0.0));
            write(
                svg,
                format_args!("<text x=\"{x:.1}\" y=\"{:.1}\" class=\"x\">{}</text>", y + 15.0, number(mark)),
            );
        }
        let (x, y) = (f64::midpoint(LEFT, WIDTH - RIGHT), HEIGHT - 4.0);
        let (across, up) = (escape(&self.x.label), escape(&self.y.label));
        write(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"x\">{across}</text>"));
        let middle = f64::midpoint(TOP, HEIGHT - BOTTOM);
        write(
            svg,
            format_args!("<text class=\"x\" transform=\"translate(11 {middle:.1}) rotate(-90)\">{up}</text>"),
        );
    }

    fn curve(&self, curve: &Curve, svg: &mut String) {
        let places: Vec<(f64, f64)> = curve.points.iter().map(|&point| self.place(point)).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let (style, label) = (colour(curve.number), escape(&curve.label));
        write(svg, format_args!("<g {style}><title>{label}</title>"));
        if !path.is_empty() {
            write(svg, format_args!("<path class=\"curve\" d=\"M{}\"/>", path.join("L")));
        }
        for ((x, y), (at, value)) in places.iter().zip(&curve.points) {
            let says = format!("{label}: {} at {}", number(*value), number(*at));
            write(
                svg,
                format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{says}</title></circle>"),
            );
        }
        svg.push_str("</g>");
    }
}

/// The attributes that colour the curve of a policy: hues by the golden angle, and dashes for every second one.
pub(super) fn colour(number: usize) -> String {
    let hue = (number as f64 * 137.508).rem_euclid(360.0);
    let dash = if number.is_multiple_of(2) { "none" } else { "6 3" };
    format!("class=\"policy\" style=\"--hue:{hue:.0};--dash:{dash}\"")
}

/// A number, rounded to a useful precision.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn write(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a String takes all that is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_round_and_hold_all_values() {
        let end = |values: &[f64]| Axis::fitting("", values.iter().copied()).max;
        assert_eq!(end(&[3.0, 97.0]), 100.0);
        assert_eq!(end(&[104.0]), 150.0);
        assert_eq!(end(&[0.013]), 0.015);
        assert!(end(&[]) > 0.0);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 50.0, 12.34, 0.25, 0.0125, 1234.5].map(number),
            ["0", "50", "12.3", "0.25", "0.0125", "1234"]
        );
    }

    #[test]
    fn points_lie_within_the_picture() {
        let axis = |max| Axis { label: "a < b".to_owned(), max };
        let curve = Curve { label: "<script>".to_owned(), number: 1, points: vec![(0.0, 0.0), (2.0, 200.0)] };
        let chart = Chart { title: "t & u", x: axis(1.0), y: axis(100.0), curves: vec![curve] };
        let svg = chart.svg();
        assert_eq!(chart.place((2.0, 200.0)), (WIDTH - RIGHT, TOP));
        assert!(svg.contains("t &amp; u") && svg.contains("a &lt; b") && !svg.contains("<script>"), "{svg}");
    }
}
