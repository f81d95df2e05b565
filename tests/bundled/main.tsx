// A small program in four modules with unused parts. expected.js is its bundle by esbuild.
import { draw, type Shape } from "./shapes";
import * as numbers from "./numbers";
import table from "./table.json";

enum Mode {
    Quiet = 1,
    Loud = "loud",
}

const shapes: Shape[] = table.rows.map(([width, height]) => ({ width, height }));

export async function* report(mode: Mode = Mode.Loud) {
    for (const [index, shape] of shapes.entries()) {
        yield `${index}: ${draw(shape)} ${numbers.primes(shape.width).join("+")}`;
    }
    if (mode === Mode.Quiet) return null;
    yield <p title={"sum"}>{numbers.sum(shapes.map((shape) => shape.height ?? 0n as never))}</p>;
}

console.log(numbers.sum([1, 2, 3]), Mode.Quiet, import.meta.url?.length);
