export interface Shape {
    width: number;
    height: number;
}

export function draw({ width, height }: Shape): string {
    return ("*".repeat(width) + "\n").repeat(height);
}

/** Nobody calls it. */
export function area(shape: Shape): number {
    return shape.width * shape.height;
}
