// The official TypeScript SDK as a client that logs in as a program, and calls a tool.
//
//     node tests/support/sdk_client.mjs URL CLIENT SCOPE TOOL ARGUMENTS
//
// It has SECRET, finds the issuer by the server, and prints the names of the tools and the text. As a
// program it asks for SCOPE, whatever the server says.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { ClientCredentialsProvider } from '@modelcontextprotocol/sdk/client/auth-extensions.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [url, clientId, scope, name, words] = process.argv.slice(2);
const clientSecret = process.env.SECRET;
const authProvider = new ClientCredentialsProvider({ clientId, clientSecret, scope });
const client = new Client({ name: 'typescript', version: '1' });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { authProvider }));
const { tools } = await client.listTools();
const result = await client.callTool({ name, arguments: JSON.parse(words) });
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), text: result.content[0].text }));
await client.close();
