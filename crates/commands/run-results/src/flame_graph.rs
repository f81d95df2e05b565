//! Sampled call stacks as text that flame graph programs read, and as an SVG flame graph. Source: Brendan Gregg, "The
//! Flame Graph" (Communications of the ACM 59(6), 2016), and its folded stacks: `a;b;c COUNT`.

use std::collections::BTreeMap;
use std::fmt::Write;

use longma_lab::report::escape;
use longma_runner::Stack;

use crate::function_name::abbreviate;
use crate::grouped;

/// The width of the image and the height of a row, in pixels.
const WIDTH: f64 = 1200.0;
const ROW: usize = 17;
/// The approximate width of a character in pixels.
const CHARACTER: f64 = 6.5;
/// Narrower boxes are not drawn.
const LEAST_WIDTH: f64 = 0.2;

/// The names of a stack's frames, the outermost first. Threads are frames if there are several.
fn frames(stack: &Stack, has_threads: bool) -> impl Iterator<Item = String> {
    let thread = has_threads.then(|| format!("thread {}", stack.thread));
    let functions = stack.functions.iter().map(|function| {
        let is_separator = |c: char| c == ';' || c.is_control();
        longma_text::sanitize(function).replace(is_separator, ":")
    });
    thread.into_iter().chain(functions)
}

fn has_threads(stacks: &[Stack]) -> bool {
    stacks.iter().any(|stack| stack.thread > 1)
}

/// The stacks as lines, one for each stack.
pub fn folded(stacks: &[Stack]) -> String {
    let has_threads = has_threads(stacks);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for stack in stacks {
        let names: Vec<_> = frames(stack, has_threads).collect();
        *lines.entry(names.join(";")).or_default() += stack.weight;
    }
    lines.into_iter().fold(String::new(), |mut text, (line, weight)| {
        let _ = writeln!(text, "{line} {weight}");
        text
    })
}

/// A function with its callees.
#[derive(Default)]
struct Node {
    weight: u64,
    callees: BTreeMap<String, Node>,
}

impl Node {
    fn of(stacks: &[Stack]) -> Self {
        let has_threads = has_threads(stacks);
        let mut root = Self::default();
        for stack in stacks {
            root.weight += stack.weight;
            let mut at = &mut root;
            for name in frames(stack, has_threads) {
                at = at.callees.entry(name).or_default();
                at.weight += stack.weight;
            }
        }
        root
    }

    fn depth(&self) -> usize {
        self.callees.values().map(|callee| 1 + callee.depth()).max().unwrap_or(0)
    }
}

/// The stacks as an SVG image. The weights are in `unit`.
pub fn svg(stacks: &[Stack], title: &str, unit: &str) -> String {
    let root = Node::of(stacks);
    let rows = root.depth() + 1;
    let height = (rows + 2) * ROW;
    let mut image = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"monospace\" font-size=\"11\">\n<text x=\"4\" y=\"13\">{}</text>\n",
        escape(&format!("{title}: {} {unit}", grouped(root.weight)))
    );
    let mut drawing = Drawing { image: &mut image, total: root.weight.max(1), height, unit };
    drawing.draw("all", &root, 0.0, 0);
    image.push_str("</svg>\n");
    image
}

struct Drawing<'a> {
    image: &'a mut String,
    total: u64,
    height: usize,
    unit: &'a str,
}

impl Drawing<'_> {
    /// Draws a function above its caller, and its callees above it.
    fn draw(&mut self, name: &str, node: &Node, mut x: f64, row: usize) {
        let width_of = |weight: u64| WIDTH * weight as f64 / self.total as f64;
        let (width, y) = (width_of(node.weight), self.height - (row + 1) * ROW);
        if width < LEAST_WIDTH {
            return;
        }
        let percent = 100.0 * node.weight as f64 / self.total as f64;
        let tip = format!("{name}: {} {} ({percent:.2} %)", grouped(node.weight), self.unit);
        // The colour depends on the name, so that a function has the same one everywhere.
        let hash = name.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        let (red, green) = (205 + hash % 50, 90 + hash / 50 % 140);
        let box_height = ROW - 1;
        let _ = write!(
            self.image,
            "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{box_height}\" rx=\"1\" \
             fill=\"rgb({red},{green},55)\"/>",
            escape(&tip)
        );
        let characters = ((width - 6.0).max(0.0) / CHARACTER) as usize;
        if characters >= 3 {
            let label = escape(&abbreviate(name, characters));
            let _ = write!(self.image, "<text x=\"{:.1}\" y=\"{}\">{label}</text>", x + 3.0, y + 12);
        }
        self.image.push_str("</g>\n");
        for (callee, node) in &node.callees {
            self.draw(callee, node, x, row + 1);
            x += WIDTH * node.weight as f64 / self.total as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(thread: usize, functions: &[&str], weight: u64) -> Stack {
        Stack { thread, functions: functions.iter().map(|name| (*name).into()).collect(), weight }
    }

    #[test]
    fn stacks_become_lines_with_threads_if_there_are_several() {
        let one = [stack(1, &["main", "f<a;b>"], 3), stack(1, &["main"], 2), stack(1, &["main"], 1)];
        assert_eq!(folded(&one), "main 3\nmain;f<a:b> 3\n");
        let two = [stack(1, &["main"], 3), stack(2, &["worker"], 4)];
        assert_eq!(folded(&two), "thread 1;main 3\nthread 2;worker 4\n");
    }

    #[test]
    fn boxes_are_as_wide_as_the_share_and_above_their_callers() {
        let stacks = [stack(1, &["main", "left&"], 30), stack(1, &["main", "right"], 90)];
        let image = svg(&stacks, "program", "instructions");
        assert!(
            image.contains(
                "<title>left&amp;: 30 instructions (25.00 %)</title><rect x=\"0.0\" y=\"34\" width=\"300.0\""
            ),
            "{image}"
        );
        assert!(
            image.contains(
                "<title>right: 90 instructions (75.00 %)</title><rect x=\"300.0\" y=\"34\" width=\"900.0\""
            ),
            "{image}"
        );
        assert!(
            image.contains("<title>main: 120 instructions (100.00 %)</title><rect x=\"0.0\" y=\"51\""),
            "{image}"
        );
        assert!(svg(&[], "program", "instructions").ends_with("</svg>\n"));
    }
}
