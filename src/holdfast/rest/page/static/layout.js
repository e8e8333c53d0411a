// Where the nodes of a graph stand: one column for each level, in an order with few crossings.

export const WIDTH = 208;
export const HEIGHT = 104;
const GAP_X = 108;
const GAP_Y = 26;

export function layout(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const level = new Map();
  const depth = (node, on) => {
    if (level.has(node.id)) return level.get(node.id);
    if (on.has(node.id)) return 0;
    on.add(node.id);
    const above = node.inputs.map((input) => byId.get(input.id)).filter(Boolean);
    const found = above.length ? 1 + Math.max(...above.map((one) => depth(one, on))) : 0;
    on.delete(node.id);
    level.set(node.id, found);
    return found;
  };
  nodes.forEach((node) => depth(node, new Set()));
  const columns = [];
  nodes.forEach((node) => (columns[level.get(node.id)] ||= []).push(node));
  const row = new Map();
  columns.forEach((column) => column.forEach((node, at) => row.set(node.id, at)));
  for (const column of columns) {
    const middle = (node) => {
      const above = node.inputs.map((input) => row.get(input.id)).filter((at) => at !== undefined);
      return above.length ? above.reduce((a, b) => a + b, 0) / above.length : row.get(node.id);
    };
    const wanted = new Map(column.map((node) => [node.id, middle(node)]));
    column.sort((a, b) => wanted.get(a.id) - wanted.get(b.id));
    column.forEach((node, at) => row.set(node.id, at));
  }
  const tallest = Math.max(1, ...columns.map((column) => column.length));
  const height = tallest * (HEIGHT + GAP_Y) - GAP_Y;
  const places = new Map();
  columns.forEach((column, x) => {
    const own = column.length * (HEIGHT + GAP_Y) - GAP_Y;
    column.forEach((node, y) =>
      places.set(node.id, { x: x * (WIDTH + GAP_X), y: (height - own) / 2 + y * (HEIGHT + GAP_Y), level: x }),
    );
  });
  return { places, width: columns.length * (WIDTH + GAP_X) - GAP_X, height };
}
